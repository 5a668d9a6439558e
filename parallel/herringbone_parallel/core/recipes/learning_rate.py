"""Computes the learning rate over a training: a warm-up, then a decay, in epochs or in steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

DECAYS = ("constant", "polynomial", "cosine")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The factor of the learning rate at each point of a training.

    >>> schedule = Schedule(length=90, warmup=5, decay="polynomial", power=2)     # epochs
    >>> schedule.factor(2.5), schedule.factor(5), schedule.factor(90)
    (0.5, 1.0, 0.0)
    >>> torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.by_steps(steps_per_epoch))      # doctest: +SKIP

    `length` and `warmup` have the same unit, epochs or steps. The factor grows linearly from `start` to 1 during the
    warm-up, then goes from 1 to `end`, and stays there after `length`. Raises `ParallelError` for invalid settings.
    """

    length: float
    warmup: float = 0.0
    decay: str = "cosine"
    power: float = 1.0
    start: float = 0.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ParallelError(f"decay {self.decay!r}: it is one of {', '.join(DECAYS)}")
        if not self.length > 0:
            raise ParallelError(f"length {self.length!r}: a schedule is longer than 0")
        if not 0 <= self.warmup <= self.length:
            raise ParallelError(f"warmup {self.warmup!r}: it lies between 0 and the length, {self.length!r}")
        if not self.power > 0:
            raise ParallelError(f"power {self.power!r}: a polynomial decay needs a power above 0")

    def factor(self, progress: float) -> float:
        """Return the factor after `progress` of `length`."""
        if progress < self.warmup:
            return self.start + (1 - self.start) * max(progress, 0.0) / self.warmup
        if self.decay == "constant":
            return 1.0
        rest = self.length - self.warmup
        # When the warm-up is the whole training, only steps after its end come here.
        remaining = max(self.length - progress, 0.0) / rest if rest else 0.0
        shape = remaining**self.power if self.decay == "polynomial" else (1 - math.cos(math.pi * remaining)) / 2
        return self.end + (1 - self.end) * shape

    def by_steps(self, steps_per_unit: float = 1) -> Callable[[int], float]:
        """Return the factor of a step as a function of the number of steps before it.

        >>> rate = Schedule(length=2, warmup=1, decay="polynomial").by_steps(steps_per_unit=2)
        >>> [rate(step) for step in range(4)]
        [0.25, 0.75, 0.75, 0.25]

        A step has the factor of its middle. At its start the first step would have factor `start`, often 0, and at its
        end the last step would have `end`: a step without effect.
        """
        if not steps_per_unit > 0:
            raise ParallelError(f"steps_per_unit {steps_per_unit!r}: a unit has more than 0 steps")
        return lambda step: self.factor((step + 0.5) / steps_per_unit)
