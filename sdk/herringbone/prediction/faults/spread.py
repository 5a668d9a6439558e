"""The bounds of a forecast that knows only the rate of faults: how far chance alone moves one job from it. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from herringbone.prediction.faults.model import Tier, useful_part

# A sum of more costs is as good as normally distributed.
_MOST_DRAWN = 200
_JOBS, _TAIL, _NORMAL_BOUND = 1000, 0.025, 1.959964
_MOST_COUNTED = 1e3


def ettr_bounds(tiers: Sequence[Tier], rate: float, down: float, seconds: float) -> tuple[float, float]:
    """Return the bounds between which the useful part of 95 % of all jobs of this length lies.

    >>> disk = Tier(name="disk", blocked=60, save=60, load=0, interval=3600)
    >>> tuple(round(bound, 2) for bound in ettr_bounds([disk], 1 / 86400, 300, 7 * 86400))
    (0.94, 0.98)

    The number of faults is Poisson's, and the cost of each is even between that of a fault right after a save and of
    one right before the next. The mean is that of `useful_part`.
    """
    quiet, useful = useful_part(tiers, 0.0, down), useful_part(tiers, rate, down)
    faults = rate * seconds
    # A fault in a restart cuts its cost short; the exact mean knows this.
    least = [down + tier.load + tier.latency for tier in tiers]
    width = [min(tier.interval, 1 / rate) for tier in tiers]
    mean = sum(tier.share * (low + wide / 2) for tier, low, wide in zip(tiers, least, width, strict=True))
    lost = 1 - useful / quiet
    if not mean or not lost:
        return useful, useful
    if faults > _MOST_DRAWN:
        square = sum(
            tier.share * (low**2 + low * wide + wide**2 / 3)
            for tier, low, wide in zip(tiers, least, width, strict=True)
        )
        spread = _NORMAL_BOUND * math.sqrt(square / faults) / mean
        few, many = 1 - spread, 1 + spread
    else:
        shares = [tier.share for tier in tiers]
        # The same bounds for the same question.
        generator, costs = random.Random(0), []  # noqa: S311 - no secret
        for _ in range(_JOBS):
            cost, moment = 0.0, generator.expovariate(faults)
            while moment < 1:
                at = generator.choices(range(len(tiers)), shares)[0]
                cost += least[at] + generator.random() * width[at]
                moment += generator.expovariate(faults)
            costs.append(cost / (faults * mean))
        costs.sort()
        few, many = costs[int(_TAIL * _JOBS)], costs[-int(_TAIL * _JOBS)]
    # The end of the job spares its last save.
    spared = sum(tier.blocked for tier in tiers) / seconds
    return max(0.0, quiet * (1 - many * lost)), min(1.0, quiet * (1 - few * lost) + spared)


def poisson_part(count: int, mean: float) -> float:
    """Return the probability of at most `count` events.

    >>> round(poisson_part(3, 2.0), 3)
    0.857
    """
    if mean > _MOST_COUNTED:
        return (1 + math.erf((count + 0.5 - mean) / math.sqrt(2 * mean))) / 2
    return min(1.0, math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)))
