"""Compare the flight records of all ranks: the first collective operation that not all of them have entered. Pure.

A record is what `ranks.recorder.flight_record` returns: the last operations of each process group, numbered from 1 in
the order in which the rank entered them, so the same number must be the same operation on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone_entry.watch.fold import ranks_text

# Operations whose input has the same shape on all ranks; of others (a broadcast, a scatter) it may differ.
_SAME_SHAPE = ("all_reduce", "allreduce", "reduce", "_reduce_scatter_base", "reduce_scatter", "_allgather_base")
_DEFAULT_GROUP = "default_pg"


class Difference(NamedTuple):
    """The first operation that differs between ranks.

    `operations` maps what the ranks entered (the operation and its shape) to the ranks that did; `missing` are the
    ranks that have not entered operation `number` of `group`.
    """

    group: str
    number: int
    operations: Mapping[str, tuple[int, ...]]
    missing: tuple[int, ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ: those that are missing, else those that entered another operation than most."""
        if self.missing:
            return self.missing
        sizes = sorted((len(ranks) for ranks in self.operations.values()), reverse=True)
        if sizes[0] == sizes[1]:
            return ()
        return tuple(rank for ranks in self.operations.values() if len(ranks) < sizes[0] for rank in ranks)

    @property
    def reason(self) -> str:
        """Why the odd ranks are odd."""
        if self.missing:
            return f"it has not entered collective operation {self.number}, in which others wait"
        return f"it entered another operation {self.number} than the others"

    def __str__(self) -> str:
        parts = [f"{ranks_text(ranks)} in {operation}" for operation, ranks in self.operations.items()]
        if self.missing:
            has = "has" if len(self.missing) == 1 else "have"
            parts.append(f"{ranks_text(self.missing)} {has} not entered it")
        group = "" if self.group == _DEFAULT_GROUP else f" of group {self.group}"
        return f"collective operation {self.number}{group}: {'; '.join(parts)}"


def first_difference(records: Mapping[int, Mapping[str, Any]]) -> Difference | None:
    """Return the first operation that some rank waits in and that differs; None if all ranks agree.

    >>> done = {"group": "default_pg", "seq": 1, "op": "barrier", "shape": "[]", "done": True, "p2p": False}
    >>> waits = {**done, "seq": 2, "done": False}
    >>> records = {0: {"groups": {}, "entries": [done, waits]}, 1: {"groups": {}, "entries": [done]}}
    >>> print(first_difference(records))
    collective operation 2: rank 0 in barrier; rank 1 has not entered it

    Only ranks with a record take part: one without it could not answer, which proves nothing.
    """
    names = {entry["group"] for record in records.values() for entry in record["entries"]}
    differences = [difference for name in sorted(names) if (difference := _of_group(name, records)) is not None]
    # The default group first: others often wait because it does.
    return min(differences, key=lambda each: (each.group != _DEFAULT_GROUP, each.number), default=None)


def _of_group(name: str, records: Mapping[int, Mapping[str, Any]]) -> Difference | None:
    entries = {
        rank: {entry["seq"]: entry for entry in record["entries"] if entry["group"] == name and not entry["p2p"]}
        for rank, record in records.items()
    }
    members = {rank for record in records.values() for rank in record["groups"].get(name, ())}
    members |= {rank for rank, own in entries.items() if own}
    if name == _DEFAULT_GROUP:
        members |= set(records)
    members &= set(records)
    # An operation that all ranks have ended cannot be the one that hangs.
    numbers = sorted({number for own in entries.values() for number, entry in own.items() if not entry["done"]})
    for number in numbers:
        operations: dict[str, list[int]] = {}
        missing = []
        for rank in sorted(members):
            entry = entries[rank].get(number)
            if entry is not None:
                operations.setdefault(_shown(entry), []).append(rank)
            elif max(entries[rank], default=0) < number:
                missing.append(rank)
        if missing or len(operations) > 1:
            shown = {text: tuple(ranks) for text, ranks in operations.items()}
            return Difference(name, number, shown, tuple(missing))
    return None


def _shown(entry: Mapping[str, Any]) -> str:
    return f"{entry['op']} {entry['shape']}" if entry["op"] in _SAME_SHAPE else str(entry["op"])
