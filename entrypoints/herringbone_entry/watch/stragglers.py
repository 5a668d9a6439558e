"""Find ranks whose steps take longer than the others'. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

RATIO = 1.2
STEPS = 20
# Steps of a rank that wait for the other ranks' steps of the same number.
_MAX_WAITING = 200


class Straggler(NamedTuple):
    """A rank whose last `steps` steps took `seconds` each in the median, where all ranks' median is `median`."""

    rank: int
    seconds: float
    median: float
    steps: int

    @property
    def ratio(self) -> float:
        """The quotient of its steps' time and the median."""
        return self.seconds / self.median


class Stragglers:
    """Takes the step times of all ranks; names each straggler once.

    >>> stragglers = Stragglers(3)
    >>> times = [stragglers.take({0: [1.0], 1: [1.0], 2: [1.5]}) for _ in range(20)]
    >>> [straggler.rank for found in times for straggler in found]
    [2]

    A rank straggles when its step took longer than RATIO times the median of all ranks, STEPS steps in a row, and for
    `least` seconds. Steps are compared by their number, so a rank's report may come later than the others'. Ranks in
    `named` have been named already.
    """

    def __init__(self, world_size: int, named: set[int] | None = None, least: float = 0.0) -> None:
        self._waiting: dict[int, list[float]] = {rank: [] for rank in range(world_size)}
        # The last slow steps in a row of each rank: its own times, and the medians; and the end of the first of them.
        self._slow: dict[int, list[tuple[float, float]]] = {rank: [] for rank in range(world_size)}
        self._since: dict[int, float] = {}
        self._named = set[int]() if named is None else named
        self._least = least

    def take(self, times: Mapping[int, Sequence[float]]) -> list[Straggler]:
        """Take the times in seconds of each rank's next steps; return the ranks that are found to straggle now."""
        for rank, seconds in times.items():
            if rank in self._waiting:
                self._waiting[rank] = (self._waiting[rank] + list(seconds))[-_MAX_WAITING:]
        found = []
        while all(self._waiting.values()):
            step = {rank: waiting.pop(0) for rank, waiting in self._waiting.items()}
            found += self.judge(step)
        return found

    def judge(self, step: Mapping[int, float], end: float = 0.0) -> list[Straggler]:
        """Take the own time of each rank in one step that ended at `end`."""
        middle = median(list(step.values()))
        found = []
        for rank, seconds in step.items():
            slow = self._slow[rank]
            if not seconds > RATIO * middle:
                slow.clear()
                continue
            if not slow:
                self._since[rank] = end
            slow.append((seconds, middle))
            del slow[:-STEPS]
            if len(slow) == STEPS and end - self._since[rank] >= self._least and rank not in self._named:
                self._named.add(rank)
                seconds, middle = median([own for own, _ in slow]), median([each for _, each in slow])
                found.append(Straggler(rank, seconds, middle, STEPS))
        return found


def median(values: list[float]) -> float:
    """Return the median.

    >>> median([3.0, 1.0, 2.0]), median([1.0, 2.0])
    (2.0, 1.5)
    """
    # `statistics` would import decimal numbers and fractions.
    middle = len(values) // 2
    ordered = sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
