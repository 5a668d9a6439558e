"""A job under one schedule of faults, event by event: `herringbone.prediction.faults` expects its mean. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from herringbone.prediction.faults.model import Tier

# Working time is a sum of many floats.
_ROUNDING = 1e-9


class Job:
    """A job that saves to some tiers, the fastest first, until it has run for `seconds`.

    >>> job = Job([Tier(name="disk", blocked=1.0, save=1.0, load=2.0, interval=10.0)], down=3.0)
    >>> job.run([(25.0, 0)], seconds=60.0)
    48.0

    Saves are complete at 11 and 22 s. The fault at 25 s costs 3 s of work and 5 s of restart. From 30 s on the job
    works for 28 s more, and saves at 40 and 51 s.
    """

    def __init__(self, tiers: Sequence[Tier], down: float) -> None:
        self._tiers, self._down = tiers, down
        self._now = self._work = 0.0
        # For each tier the work in its newest complete checkpoint, in the one that is on its way, and that one's time.
        self._kept = [0.0] * len(tiers)
        self._coming = [(0.0, 0.0)] * len(tiers)
        self._saves = [1] * len(tiers)

    def run(self, faults: Sequence[tuple[float, int]] | Iterator[tuple[float, int]], seconds: float) -> float:
        """Return the useful seconds of work at the end.

        `faults` are moments in their order, each with the index of the fastest tier that survives it.
        """
        for moment, survivor in faults:
            if moment >= seconds:
                break
            self._train(moment)
            self._restart(moment, survivor)
        self._train(seconds)
        return self._work

    def _train(self, until: float) -> None:
        """Work and save until a moment."""
        while self._now < until:
            due = [number * tier.interval for number, tier in zip(self._saves, self._tiers, strict=True)]
            work = min(min(due) - self._work, until - self._now)
            self._now += work
            self._work += work
            for index, tier in enumerate(self._tiers):
                if self._work >= due[index] - _ROUNDING and self._now < until:
                    self._save(index, tier, until)

    def _save(self, index: int, tier: Tier, until: float) -> None:
        self._settle(index)
        # A save waits for the one before.
        complete = max(self._now, self._coming[index][1]) + tier.save
        self._now = min(until, complete - tier.latency)
        self._settle(index)
        if complete - tier.latency <= until:
            self._saves[index] += 1
            self._coming[index] = (self._work, complete)

    def _settle(self, index: int) -> None:
        work, complete = self._coming[index]
        if complete <= self._now:
            self._kept[index] = max(self._kept[index], work)

    def _restart(self, moment: float, survivor: int) -> None:
        """Lose the work since the newest checkpoint that is left; the fault may come in the restart before."""
        for index in range(len(self._tiers)):
            if self._now <= moment:
                self._settle(index)
        self._work = max(self._kept[survivor:])
        self._now = moment + self._down + self._tiers[survivor].load
        for index, tier in enumerate(self._tiers):
            # What is loaded is in the memory of the hosts again.
            self._kept[index] = self._work if index < survivor else self._kept[index]
            self._coming[index] = (0.0, 0.0)
            self._saves[index] = math.floor(self._work / tier.interval + _ROUNDING) + 1


def random_faults(tiers: Sequence[Tier], rate: float, seed: int) -> Iterator[tuple[float, int]]:
    """Yield faults of a constant rate without an end: the same ones for the same seed.

    >>> disk = Tier(name="disk", blocked=1, save=1, load=1)
    >>> faults = random_faults([disk], 0.01, seed=7)
    >>> round(next(faults)[0]), round(next(faults)[0])
    (39, 144)
    """
    generator, moment = random.Random(seed), 0.0
    shares = [tier.share for tier in tiers]
    while True:
        moment += generator.expovariate(rate)
        yield moment, generator.choices(range(len(tiers)), shares)[0]
