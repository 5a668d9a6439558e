"""Find ranks whose parameters have other bits than those of their replicas. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# Steps of which not all ranks have reported.
_MAX_OPEN = 100


class Mismatch(NamedTuple):
    """The `ranks` that differ from `others` at a step; `ranks` are all where none is in the majority."""

    step: int
    ranks: tuple[int, ...]
    others: tuple[int, ...]


class Replicas:
    """Takes each rank's checksum of a step, and compares ranks that were equal at the first step of all.

    >>> replicas = Replicas([0, 1, 2])
    >>> [replicas.take(rank, 1, "7") for rank in range(3)], replicas.alone
    ([[], [], []], False)
    >>> [replicas.take(rank, 50, value) for rank, value in enumerate("898")][-1]
    [Mismatch(step=50, ranks=(1,), others=(0, 2))]

    So a layout needs no description: ranks of other parts of a model differ from the begin.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = set(ranks)
        self._open: dict[int, dict[int, str]] = {}
        # Ranks that hold the same; None before the first step of all.
        self._groups: list[set[int]] | None = None
        self._reported: set[tuple[int, ...]] = set()

    @property
    def alone(self) -> bool:
        """Report that no two ranks hold the same, so that nothing can be compared."""
        return self._groups is not None and all(len(group) == 1 for group in self._groups)

    def take(self, rank: int, step: int, value: str) -> list[Mismatch]:
        """Take a checksum; return what differs at a step of which all ranks have reported."""
        if rank not in self._ranks:
            return []
        found = self._open.setdefault(step, {})
        found[rank] = value
        if len(found) < len(self._ranks):
            for old in sorted(self._open)[:-_MAX_OPEN]:
                del self._open[old]
            return []
        del self._open[step]
        if self._groups is None:
            values = dict.fromkeys(found.values())
            self._groups = [{rank for rank, own in found.items() if own == each} for each in values]
            return []
        mismatches = [self._judge(step, {rank: found[rank] for rank in sorted(group)}) for group in self._groups]
        return [each for each in mismatches if each is not None]

    def _judge(self, step: int, values: dict[int, str]) -> Mismatch | None:
        counts = Counter(values.values()).most_common()
        if len(counts) == 1:
            return None
        is_tie = counts[0][1] == counts[1][1]
        ranks = tuple(rank for rank, value in values.items() if is_tie or value != counts[0][0])
        if ranks in self._reported:
            return None
        self._reported.add(ranks)
        return Mismatch(step, ranks, tuple(rank for rank in values if rank not in ranks))
