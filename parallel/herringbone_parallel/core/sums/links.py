"""Fits the cost of a sum, a fixed time and a time per byte, to measured points, and chooses the points to measure.

    points = []
    while (probe := next_probe(points)) is not None:
        points.append((probe.size, median_seconds_of_an_all_reduce(probe.size, probe.repeats)))
    cost = fit(points)                                      # of that method, between these hosts
    link = host_link(cost, share=busiest_share(4, 0))       # the link of one host

Every rank must use the points of one rank. Measured times differ between ranks, and so would the plans made from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

_SMALLEST_PROBE = 4 << 10
_PROBE_FACTOR = 8
_LARGEST_PROBE = 128 << 20
# Sums up to this size are short, so more repeats cost little, and their times scatter more.
_SMALL = 32 << 10


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds that a method takes to sum some bytes: `alpha_s` for every sum, and `beta_s` for each byte.

    >>> Cost(alpha_s=0.001, beta_s=4e-8).seconds(25_000_000)
    1.001
    """

    alpha_s: float
    beta_s: float

    def __post_init__(self) -> None:
        if self.alpha_s < 0 or self.beta_s < 0:
            raise ParallelError(f"{self}: neither is negative")

    def seconds(self, size: float) -> float:
        """Return the time that `size` bytes take."""
        return self.alpha_s + self.beta_s * size


@dataclass(frozen=True, slots=True)
class HostLink:
    """A host's link to all others, or the links inside a host.

        link = HostLink(bytes_per_s=23.8e6, latency_s=6e-4)

    `bytes_per_s` is the rate of one direction while the other is idle. `duplex` is the fraction of it that remains when
    both directions are busy, as in an all-reduce. `latency_s` is the time from the first byte's departure until the
    waiting process has noticed the message. `message_s` is the time that each message occupies the link beyond its
    bytes. Raises `ParallelError` for impossible figures.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    message_s: float = 0.0
    duplex: float = 1.0

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.latency_s < 0 or self.message_s < 0 or not 0 < self.duplex <= 1:
            raise ParallelError(
                f"{self}: bytes_per_s is above 0, duplex above 0 and at most 1, and no time is negative"
            )

    def busy_s(self, size: float, messages: float) -> float:
        """Return the seconds for which `size` bytes in so many messages occupy one direction of the link."""
        return size / (self.bytes_per_s * self.duplex) + messages * self.message_s


@dataclass(frozen=True, slots=True)
class Probe:
    """An all-reduce to time: `size` bytes, `repeats` times, of which the median counts."""

    size: int
    repeats: int


def fit(points: Sequence[tuple[float, float]]) -> Cost:
    """Fit a cost to measured (bytes, seconds), by least squares of the relative errors.

    >>> fit([(0, 0.5), (100, 2.5)])
    Cost(alpha_s=0.5, beta_s=0.02)

    Errors are relative, because small sizes take milliseconds and large ones seconds: absolute errors would fit the
    large ones alone. A part that would be negative is 0, and the other part is fitted alone. Raises `ParallelError` for
    fewer than two sizes, and for times that are not above 0.
    """
    if len({size for size, _ in points}) < 2 or min(seconds for _, seconds in points) <= 0:
        raise ParallelError(f"a cost cannot be fitted to {list(points)}: it takes two sizes, and times above 0")
    # With u = 1 / t and v = size / t, the relative errors are alpha u + beta v - 1, linear in alpha and beta. These are
    # the normal equations of that problem, solved by Cramer's rule.
    u = [1 / seconds for _, seconds in points]
    v = [size / seconds for size, seconds in points]
    uu, uv, vv = _product(u, u), _product(u, v), _product(v, v)
    sum_u, sum_v = math.fsum(u), math.fsum(v)
    determinant = uu * vv - uv * uv
    alpha = (sum_u * vv - sum_v * uv) / determinant
    beta = (sum_v * uu - sum_u * uv) / determinant
    if alpha < 0:
        return Cost(0.0, sum_v / vv)
    if beta < 0:
        return Cost(sum_u / uu, 0.0)
    return Cost(alpha, beta)


def fit_shaped(points: Sequence[tuple[float, float]]) -> Cost:
    """Fit as `fit` does, but by the largest size alone when a smaller one costs less per byte.

    >>> fit_shaped([(4, 2.0), (32, 4.0), (256, 65.0)])
    Cost(alpha_s=1.0, beta_s=0.25)
    >>> fit_shaped([(0, 0.5), (100, 2.5)])
    Cost(alpha_s=0.5, beta_s=0.02)

    A traffic shaper, such as a token bucket or a cloud's network credits, lets some bytes pass at full speed after a
    pause. The links of a training job have no pauses, so those points are too fast.
    """
    (smallest, smallest_s), (size, seconds) = min(points), max(points)
    # Compare seconds per byte as products, so that a size of 0 needs no special case.
    if not any(small * seconds > small_s * size for small, small_s in points):
        return fit(points)
    # The line through the smallest and the largest point gives the fixed cost; the largest alone gives the rate.
    alpha_s = max(0.0, (smallest_s * size - seconds * smallest) / (size - smallest))
    return Cost(alpha_s, (seconds - alpha_s) / size)


def host_link(cost: Cost, *, share: float, hops: int = 2) -> HostLink:
    """Return the link that each host must have, from the measured cost of a method.

    >>> host_link(Cost(alpha_s=0.5, beta_s=0.25), share=1.5)
    HostLink(bytes_per_s=6.0, latency_s=0.25, message_s=0.0, duplex=1.0)

    `share` is the number of bytes that the busiest host sends per byte of gradients (`shards.busiest_share`). `hops` is
    the number of messages that follow each other: 2, or 2 (n - 1) in a ring. Raises `ParallelError` for a cost without
    a time per byte.
    """
    if cost.beta_s == 0:
        raise ParallelError(f"{cost} has no time per byte, so the bandwidth is unknown: measure larger sizes")
    return HostLink(share / cost.beta_s, cost.alpha_s / hops)


def next_probe(points: Sequence[tuple[int, float]], *, budget_s: float = 1.0) -> Probe | None:
    """Return the next all-reduce to measure after `points`, or None when the points are enough.

    >>> next_probe([]), next_probe([(4096, 0.001)])
    (Probe(size=4096, repeats=9), Probe(size=32768, repeats=9))

    `points` are (bytes, median seconds) by growing size. Sizes grow eightfold from 4 KiB. Points are enough once two
    sizes in a row had the same bytes per second within 5 %, or when the next size would exceed `budget_s`. Two points
    are always measured. A size for which the budget has no repeats is measured once.
    """
    if not points:
        return Probe(_SMALLEST_PROBE, _repeats(_SMALLEST_PROBE))
    size, seconds = points[-1]
    following = Probe(size * _PROBE_FACTOR, _repeats(size * _PROBE_FACTOR))
    if len(points) < 2:
        return following
    if following.size > _LARGEST_PROBE or _is_settled(points):
        return None
    # The last size took `seconds`, so the next one takes at most `_PROBE_FACTOR` times as long.
    spent = math.fsum(_repeats(size) * seconds for size, seconds in points)
    possible = int((budget_s - spent) / (seconds * _PROBE_FACTOR))
    return Probe(following.size, min(following.repeats, possible)) if possible > 0 else None


def _is_settled(points: Sequence[tuple[int, float]]) -> bool:
    """Return True if the last two steps in size cost the same per byte, within 5 %."""
    if len(points) < 3:
        return False
    (a, a_s), (b, b_s), (c, c_s) = points[-3:]
    # Differences, because they cancel the fixed cost.
    before, now = (b_s - a_s) / (b - a), (c_s - b_s) / (c - b)
    return abs(before - now) <= 0.05 * abs(now)


def _repeats(size: int) -> int:
    return 9 if size <= _SMALL else 3


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    # Not `sum`: it rounds otherwise since Python 3.12, and all ranks must agree.
    return math.fsum(a * b for a, b in zip(left, right, strict=True))
