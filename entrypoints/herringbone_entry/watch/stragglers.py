"""Find ranks whose steps take longer than the others'. Pure."""

from __future__ import annotations

from collections import deque
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

    A rank straggles when its step took longer than RATIO times the median of all ranks in at least the part `share` of
    the last steps: of STEPS, or of more that took `least` seconds. Steps are compared by their number, so a rank's
    report may come later than the others'. Ranks in `named` have been named already.
    """

    def __init__(
        self, world_size: int, named: set[int] | None = None, *, least: float = 0.0, share: float = 1.0
    ) -> None:
        self._waiting: dict[int, list[float]] = {rank: [] for rank in range(world_size)}
        # Of the last steps: the times of all ranks, their median, and when the step ended.
        self._last: deque[tuple[Mapping[int, float], float, float]] = deque()
        self._named = set[int]() if named is None else named
        self._least, self._share = least, share

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
        last = self._last
        last.append((step, median(list(step.values())), end))
        while len(last) > STEPS and end - last[1][2] >= self._least:
            last.popleft()
        if len(last) < STEPS or end - last[0][2] < self._least:
            return []
        found = []
        for rank in step.keys() - self._named:
            owns = [own.get(rank, 0.0) for own, _, _ in last]
            usual = [middle for _, middle, _ in last]
            num_slow = sum(own > RATIO * middle for own, middle in zip(owns, usual, strict=True))
            if num_slow >= self._share * len(last):
                self._named.add(rank)
                found.append(Straggler(rank, median(owns), median(usual), len(last)))
        return found


def median(values: Sequence[float]) -> float:
    """Return the median.

    >>> median([3.0, 1.0, 2.0]), median([1.0, 2.0])
    (2.0, 1.5)
    """
    # `statistics` would import decimal numbers and fractions.
    middle = len(values) // 2
    ordered = sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
