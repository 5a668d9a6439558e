"""The places where a job's ranks are: the answer to `herringbone stacks`, and the part of a hang's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.events import kinds
from herringbone.events.kinds import decode
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from herringbone.protocols.backend import Backend
    from herringbone_contract.events.format import Event


class StackGroup(NamedTuple):
    """Ranks at the same place.

    `frames` are texts such as "train.py:12 in step", innermost first. `odd` is true for the ranks that keep the others
    waiting, and `why` says how that shows. `state` is "" for processes that run or sleep as usual.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    odd: bool
    why: str
    state: str
    frames: tuple[str, ...]


class Stacks(NamedTuple):
    """All ranks in groups, the odd one first; `text` is what the log shows.

    >>> stacks = job.stacks()                                    # doctest: +SKIP
    >>> stacks.groups[0].ranks, stacks.groups[0].frames[0]       # doctest: +SKIP
    ((1,), 'train.py:12 in step: lock.acquire()')
    """

    text: str
    groups: tuple[StackGroup, ...]

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"text": self.text, "groups": [group._asdict() for group in self.groups]}


def ask_for_stacks(backend: Backend, name: str, hosts: Sequence[str]) -> Stacks:
    """Ask a running job where its ranks are. `hosts` are its hosts, the first one first.

    Raises `RequestError` when the job is over or does not answer, `UnsupportedError` where nothing can be asked.
    """
    from herringbone.access.requests import ask
    from herringbone_contract.errors import RequestError

    # The coordinator is on the first host, and asks the others.
    answer = ask(backend, name, "stacks", hosts=hosts[:1])[hosts[0]]
    if answer["kind"] != "stacks":
        raise RequestError(f"job {name}: {printable(str(answer.get('error')))}")
    return parse_stacks(answer)


def parse_stacks(event: Event) -> Stacks:
    """Return the content of an event `stacks`; that of a damaged one is empty.

    >>> parse_stacks({"kind": "stacks", "t": 1.0, "text": "stacks: rank 0 (algo-1)"}).text
    'stacks: rank 0 (algo-1)'
    """
    known = decode(event)
    if not isinstance(known, kinds.Stacks):
        return Stacks("", ())
    return Stacks(
        printable(known.text, keep="\n"),
        tuple(
            StackGroup(
                tuple(group.ranks),
                tuple(map(printable, group.hosts)),
                group.odd,
                printable(group.why or ""),
                printable(group.state or ""),
                tuple(map(printable, group.frames)),
            )
            for group in known.groups
        ),
    )
