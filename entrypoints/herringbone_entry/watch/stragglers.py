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

    A rank straggles when its step took longer than RATIO times the median of all ranks, STEPS steps in a row. Steps are
    compared by their number, so a rank's report may come later than the others'.
    """

    def __init__(self, world_size: int) -> None:
        self._waiting: dict[int, list[float]] = {rank: [] for rank in range(world_size)}
        # The slow steps in a row of each rank: its own times, and the medians.
        self._slow: dict[int, list[tuple[float, float]]] = {rank: [] for rank in range(world_size)}
        self._named: set[int] = set()

    def take(self, times: Mapping[int, Sequence[float]]) -> list[Straggler]:
        """Take the times in seconds of each rank's next steps; return the ranks that are found to straggle now."""
        for rank, seconds in times.items():
            if rank in self._waiting:
                self._waiting[rank] = (self._waiting[rank] + list(seconds))[-_MAX_WAITING:]
        found = []
        while all(self._waiting.values()):
            step = {rank: waiting.pop(0) for rank, waiting in self._waiting.items()}
            found += self._judge(step)
        return found

    def _judge(self, step: Mapping[int, float]) -> list[Straggler]:
        middle = _median(list(step.values()))
        found = []
        for rank, seconds in step.items():
            slow = self._slow[rank]
            if not seconds > RATIO * middle:
                slow.clear()
                continue
            slow.append((seconds, middle))
            del slow[:-STEPS]
            if len(slow) == STEPS and rank not in self._named:
                self._named.add(rank)
                seconds, middle = _median([own for own, _ in slow]), _median([each for _, each in slow])
                found.append(Straggler(rank, seconds, middle, STEPS))
        return found


def _median(values: list[float]) -> float:
    # `statistics` would import decimal numbers and fractions.
    middle = len(values) // 2
    ordered = sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
