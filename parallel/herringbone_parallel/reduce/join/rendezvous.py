"""Where ranks learn of each other: all come to rank 0, say who they are, and get the list of all."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.listener import Door, call, listen
from herringbone_parallel.reduce.join.settings import Settings


@dataclass(frozen=True)
class Attendee:
    """One rank, as it tells the others: its host, where it listens, and what must be the same on all.

    `addresses` are (address, port), one for each rail; `local` is the path of its socket for ranks of its host;
    `called` is the number that messages give it, None if it is `rank`.
    """

    rank: int
    size: int
    host: str
    addresses: tuple[tuple[str, int], ...]
    local: str
    agreed: Mapping[str, Any]
    called: int | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Attendee:
        addresses = tuple((str(address), int(port)) for address, port in message["addresses"])
        return cls(**{**message, "addresses": addresses})


@dataclass(frozen=True)
class Roster:
    """All ranks in their order, and a name for this meeting that no other one has."""

    session: str
    ranks: tuple[Attendee, ...]


def meet(settings: Settings, own: Attendee, listener: socket.socket | None) -> tuple[Roster, int]:
    """Wait until all ranks are there; return who they are, and how many connections rank 0 refused.

    `listener` is rank 0's socket at `settings.meet`, None elsewhere. Raises `ParallelError` naming the ranks that did
    not come in `settings.join_timeout`, or that differ in what all must agree on.
    """
    until = time.monotonic() + settings.join_timeout
    if listener is not None:
        return _hold(settings, own, listener, until)
    # Rank 0 names who did not come: it is given longer than it waits itself.
    connection, answer = call(settings.meet, "rank 0", settings.token, asdict(own), until, more=5.0)
    connection.close()
    return Roster(answer["session"], tuple(map(Attendee.of, answer["ranks"]))), 0


def differences(ranks: Sequence[Attendee]) -> str | None:
    """Return what keeps these ranks from working together, or None. Pure.

    >>> differences([Attendee(0, 2, "a", (), "", {"window": 4}), Attendee(1, 2, "b", (), "", {"window": 8})])
    'ranks disagree on window: 4 on rank 0, 8 on rank 1'
    """
    if len({rank.size for rank in ranks}) > 1:
        return "ranks disagree on their number: " + ", ".join(f"{rank.size} on rank {rank.rank}" for rank in ranks)
    first = ranks[0]
    for rank in ranks[1:]:
        for name in sorted({*first.agreed, *rank.agreed}):
            ours, theirs = first.agreed.get(name), rank.agreed.get(name)
            if ours != theirs:
                return f"ranks disagree on {name}: {ours} on rank {first.rank}, {theirs} on rank {rank.rank}"
    return None


def _hold(settings: Settings, own: Attendee, listener: socket.socket, until: float) -> tuple[Roster, int]:
    came: dict[int, Attendee] = {own.rank: own}
    connections: list[socket.socket] = []
    changed = threading.Condition()

    def visit(connection: socket.socket, hello: dict[str, Any]) -> None:
        rank = Attendee.of(hello)
        with changed:
            if rank.rank in came:
                raise ParallelError(f"rank {rank.rank} came twice, from {came[rank.rank].host} and from {rank.host}")
            came[rank.rank] = rank
            connections.append(connection)
            changed.notify_all()

    door = Door([listener], settings.token, visit)
    try:
        with changed:
            changed.wait_for(lambda: len(came) >= settings.size, until - time.monotonic())
            absent = sorted(set(range(settings.size)) - set(came))
        ranks = tuple(came[rank] for rank in sorted(came))
        wrong = differences(ranks)
        if wrong is None and absent:
            refused = f"; {door.refused} connections without the job's token were refused" if door.refused else ""
            wrong = f"{_list(absent)} did not come to {settings.meet[0]} in {settings.join_timeout:g} s{refused}"
        roster = Roster(secrets.token_hex(8), ranks)
        answer = {"error": wrong} if wrong else asdict(roster)
        for connection in connections:
            # Who is gone again is noticed when it does not answer its next call.
            try:
                handshake.send(connection, answer)
            except OSError:
                continue
        if wrong:
            raise ParallelError(wrong)
        return roster, door.refused
    finally:
        door.close()
        for connection in connections:
            connection.close()


def _list(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:20])) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def rank_zero(settings: Settings) -> socket.socket | None:
    """Return the socket that rank 0 listens at; None on other ranks."""
    return listen(*settings.meet) if settings.rank == 0 else None
