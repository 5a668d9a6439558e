"""The expected part of a job's time that is useful, when faults come at random and saves cost time. Pure.

    | work, `interval` s | blocked | work ...                 [1] the save begins
                         [1]       [2]        [3]             [2] training goes on
                                                              [3] the save is complete: `save` s after [1]

A fault loses the work since the newest save that is complete. Faults come one by one, with a constant rate: in working
time, in saves, in restarts. Seconds everywhere, and faults a second for rates.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974); Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006); for saves in the background Vaidya,
"Impact of checkpoint latency on overhead ratio of a checkpointing scheme", IEEE TC 46 (1997).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

# exp of more overflows; a job that lost so much would never end.
_MOST_EXPONENT = 700.0
_HALVINGS = 100


class Tier(Struct, frozen=True, kw_only=True):
    """One place where checkpoints go, and its seconds.

    >>> Tier(name="disk", blocked=0.5, save=20.0, load=5.0).latency
    19.5

    Training stands still for `blocked` of the `save` seconds; after the others a restart finds the checkpoint, and
    reads it in `load` seconds. `interval` is the working time between two saves. `share` is the part of all faults
    after which the restart reads this tier, since no faster one has survived.
    """

    name: str
    blocked: float
    save: float
    load: float
    interval: float = math.inf
    share: float = 1.0

    @property
    def latency(self) -> float:
        """The seconds of a save in which training goes on."""
        return self.save - self.blocked


class Loss(Struct, frozen=True, kw_only=True):
    """The parts of a job's time: those of saves, of work that is done again, and of restarts. The rest is useful.

    >>> Loss(ettr=0.9, saves=0.02, redone=0.05, down=0.03).ettr
    0.9
    """

    ettr: float
    saves: float
    redone: float
    down: float


def expected(tiers: Sequence[Tier], rate: float, down: float) -> Loss:
    """Return the expected parts of the time of a job with these tiers, the fastest first.

    >>> round(expected([Tier(name="disk", blocked=60, save=60, load=0, interval=3600)], 1 / 86400, 300).ettr, 4)
    0.9596

    `rate` is that of all faults, `down` the seconds from a fault to the load. With one tier the result is exact for a
    long job. With several, each tier sees the time of the faster ones as working time without a spread, which is right
    within 0.2 % for jobs that lose a tenth of their time, and within 6 % for those that lose a third.
    """
    useful = useful_part(tiers, rate, down)
    saves = useful * (1 / useful_part(tiers, 0.0, down) - 1) if useful else 0.0
    # A job is down whenever its newest fault is no older than a restart takes.
    stopped = sum(tier.share * -math.expm1(-rate * (down + tier.load)) for tier in tiers)
    return Loss(ettr=useful, saves=saves, redone=max(0.0, 1 - useful - saves - stopped), down=stopped)


def useful_part(tiers: Sequence[Tier], rate: float, down: float) -> float:
    """Return the expected useful part of a job's time, the ETTR: 0 where nothing is ever done."""
    stretch = 1.0
    for tier in tiers:
        if math.isinf(tier.interval):
            if rate * tier.share:
                return 0.0
            continue
        work = tier.interval * stretch
        exponent = _log_seconds(tier, work, tier.share * rate, down + tier.load) - math.log(tier.interval)
        if exponent > _MOST_EXPONENT:
            return 0.0
        stretch = math.exp(exponent)
    return 1 / stretch


def _log_seconds(tier: Tier, work: float, rate: float, stop: float) -> float:
    """Return the logarithm of the expected seconds between two complete saves.

    When save k is complete, the work after its point goes on. Without a fault, the next save is complete `cycle`
    seconds later. After a fault, the job goes back to the point of save k, so `again` seconds without a fault are
    needed, each attempt of which is preceded by a restart. The expected seconds are therefore

        (exp(rate * (again + stop)) - exp(rate * (again - cycle + stop))) / rate

    which is Daly's complete model where nothing is saved in the background.
    """
    # A save waits for the one before.
    cycle = max(work, tier.latency) + tier.blocked
    if rate == 0:
        return math.log(cycle)
    again = work + tier.blocked + tier.latency
    return rate * (again + stop) + math.log(-math.expm1(-rate * cycle)) - math.log(rate)


def with_best_intervals(tiers: Sequence[Tier], rate: float, down: float, step: float = 0.0) -> tuple[Tier, ...]:
    """Return the tiers with the intervals that lose the least time: whole steps where `step`, their seconds, is known.

    >>> with_best_intervals([Tier(name="disk", blocked=300, save=300, load=0)], 1 / 86400, 600)[0].interval / 60
    116.69...
    """
    found: list[Tier] = []
    for tier in tiers:
        if not tier.share:
            found.append(tier)
            continue
        stretch = 1 / (useful_part(found, rate, down) or 1.0)
        interval = best_interval(tier, tier.share * rate) / stretch
        found.append(replace(tier, interval=max(1, round(interval / step)) * step if step else interval))
    return tuple(found)


def best_interval(tier: Tier, rate: float) -> float:
    """Return the working time between two saves that loses the least time, at most that between two faults.

    With x = rate * interval, it solves 1 - x = exp(-x - rate * blocked), which depends neither on restarts nor on what
    a save does in the background. Young's sqrt(2 * blocked / rate) and Daly's series are approximations of it.
    """
    cost = rate * tier.blocked
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        x = (low + high) / 2
        # 1 - x - exp(-x - cost), without the loss of digits near 0.
        low, high = (x, high) if -x - math.expm1(-x - cost) > 0 else (low, x)
    # The shortest interval in which no save waits for the one before; 1 ms where saves cost nothing.
    return min(max(high / rate, tier.latency, 1e-3), 1 / rate)
