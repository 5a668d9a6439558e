"""The ticket of a job in a machine's line: what it wants, what it was granted. Pure: bytes to a value, and back."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

MAX_BYTES = 65_536
# The owner's uid, the job, and a random part, because two homes of one user may have jobs of one name.
_NAME = re.compile(r"([0-9]{1,10})\.[A-Za-z0-9][A-Za-z0-9.-]{0,79}\.[0-9a-f]{12}")

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
# As `system.processes.identity` writes it.
_Process = Annotated[str, msgspec.Meta(pattern=r"^([0-9]{1,10}@[ -~]{1,50})?$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that a job needs: `gpus` out of `among`, all of the machine's if that is empty; and `shares`.

    `beside_foreign`: also GPUs that processes outside of Herringbone use, for a job that asked for none by itself.

    >>> bool(Wants()), bool(Wants(gpus=2))
    (False, True)
    """

    gpus: _Count = 0
    shares: _Count = 0
    among: tuple[_Text, ...] = ()
    beside_foreign: bool = False

    def __bool__(self) -> bool:
        return bool(self.gpus or self.shares)


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One job in the line, as its owner wrote it; another user's ticket may say anything.

    `name` is the ticket's own, `job` the job's. `arrival`, `granted_at` are seconds since 1970, `max_run` is seconds.
    `client` is the process that submitted it. `granted` are the job's devices, None while it waits. `note` says what it
    waits for, if no job has it. `waiter` is the identity of the process that holds a waiting job's place. `number` and
    `turn` are the worst that a job in the lines of several machines has in any of them; see `line.in_order`.
    """

    name: str = ""
    job: _Text
    user: _Text
    home: _Text = ""
    arrival: _Seconds
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    wants: Wants
    max_run: _Seconds = 0.0
    granted: tuple[_Text, ...] | None = None
    granted_at: _Seconds | None = None
    note: _Text = ""
    client: Annotated[int, msgspec.Meta(ge=0)] = 0
    number: _Count = 0
    turn: _Seconds = 0.0
    waiter: _Process = ""

    @property
    def uid(self) -> int:
        """The user id of the owner, which the file system has confirmed."""
        return uid_of(self.name) or 0

    @property
    def waits(self) -> bool:
        return self.granted is None


_DECODER = msgspec.json.Decoder(Ticket)


def uid_of(name: str) -> int | None:
    """Return the user id in the name of a ticket; None for any other text.

    >>> uid_of("1000.digits-1.0123456789ab"), uid_of("notes.txt")
    (1000, None)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode(ticket: Ticket) -> bytes:
    """Return the content of a ticket's file."""
    return msgspec.json.encode(ticket)


def decode(name: str, content: bytes) -> Ticket | None:
    """Return the ticket in a file of that name; None for content that no Herringbone wrote.

    >>> decode("1000.digits-1.0123456789ab", b'{"granted": 3}'), decode("1000.digits-1.0123456789ab", b'{"\\xff": 3}')
    (None, None)
    """
    try:
        ticket = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # The texts are shown on terminals, which obey control characters.
    shown = (ticket.job, ticket.user, ticket.note, *(ticket.granted or ()))
    if not 0 <= ticket.arrival < float("inf") or not all(map(str.isprintable, shown)):
        return None
    return msgspec.structs.replace(ticket, name=name)
