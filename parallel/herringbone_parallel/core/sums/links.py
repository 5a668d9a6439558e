"""What links cost: a fixed time and a time per byte, fitted to a few measured points; and which points to measure.

    points = []
    while (probe := next_probe(points)) is not None:
        points.append((probe.size, median_seconds_of_an_all_reduce(probe.size, probe.repeats)))
    cost = fit(points)                                      # of that method, between these hosts
    link = host_link(cost, share=busiest_share(4, 0))       # what it says about a host's link

Every rank must go on with the same points, those of one rank, or their plans differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

_SMALLEST_PROBE = 4 << 10
_PROBE_FACTOR = 8
_LARGEST_PROBE = 128 << 20
_SMALL = 32 << 10


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a method takes for so many bytes: `alpha_s` whatever their number, and `beta_s` for each.

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

    `bytes_per_s` go each way, alone; `duplex` is the part of it that is left each way when both are busy, as they are
    in an all-reduce. `latency_s` passes from a message's first byte leaving until whoever waits for it has noticed it,
    and `message_s` is what one more message keeps the link from carrying.
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
        """Return how long the link is taken, one way, by `size` bytes in so many messages."""
        return size / (self.bytes_per_s * self.duplex) + messages * self.message_s


@dataclass(frozen=True, slots=True)
class Probe:
    """An all-reduce to be timed: `size` bytes, `repeats` times; the median counts."""

    size: int
    repeats: int


def fit(points: Sequence[tuple[float, float]]) -> Cost:
    """Fit a cost to measured (bytes, seconds), by least squares of the relative errors.

    >>> fit([(0, 0.5), (100, 2.5)])
    Cost(alpha_s=0.5, beta_s=0.02)

    Relative, as milliseconds decide for small sizes and seconds for large ones. What would come out negative is 0 and
    the other one fitted alone. Raises `ParallelError` for fewer than two sizes, and for times that are not above 0.
    """
    if len({size for size, _ in points}) < 2 or min(seconds for _, seconds in points) <= 0:
        raise ParallelError(f"a cost cannot be fitted to {list(points)}: it takes two sizes, and times above 0")
    # With u = 1 / t and v = size / t, the errors are alpha u + beta v - 1.
    u = [1 / seconds for _, seconds in points]
    v = [size / seconds for size, seconds in points]
    uu, uv, vv = _product(u, u), _product(u, v), _product(v, v)
    determinant = uu * vv - uv * uv
    alpha = (sum(u) * vv - sum(v) * uv) / determinant
    beta = (sum(v) * uu - sum(u) * uv) / determinant
    if alpha < 0:
        return Cost(0.0, sum(v) / vv)
    if beta < 0:
        return Cost(sum(u) / uu, 0.0)
    return Cost(alpha, beta)


def fit_shaped(points: Sequence[tuple[float, float]]) -> Cost:
    """Fit as `fit` does, but by the largest size where smaller ones cost less for each byte.

    >>> fit_shaped([(4, 2.0), (32, 4.0), (256, 65.0)])
    Cost(alpha_s=1.0, beta_s=0.25)
    >>> fit_shaped([(0, 0.5), (100, 2.5)])
    Cost(alpha_s=0.5, beta_s=0.02)

    What shapes a link, such as a cloud's credits or a token bucket, lets so many bytes pass at once after a rest. In a
    step nobody rests.
    """
    (smallest, smallest_s), (size, seconds) = min(points), max(points)
    if not any(small * seconds > taken * size for small, taken in points):
        return fit(points)
    alpha_s = max(0.0, (smallest_s * size - seconds * smallest) / (size - smallest))
    return Cost(alpha_s, (seconds - alpha_s) / size)


def host_link(cost: Cost, *, share: float, hops: int = 2) -> HostLink:
    """Return the link of each host behind the measured cost of a method.

    >>> host_link(Cost(alpha_s=0.5, beta_s=0.25), share=1.5)
    HostLink(bytes_per_s=6.0, latency_s=0.25, message_s=0.0, duplex=1.0)

    `share` is what the busiest host sends for each byte of the gradients (`shards.busiest_share`), `hops` how many
    messages follow each other: 2, or 2 (n - 1) in a ring.
    """
    if cost.beta_s == 0:
        raise ParallelError(f"{cost} says nothing about bandwidth: measure larger sizes")
    return HostLink(share / cost.beta_s, cost.alpha_s / hops)


def next_probe(points: Sequence[tuple[int, float]], *, budget_s: float = 1.0) -> Probe | None:
    """Return what to measure after the measured `points`, (bytes, median seconds) by growing size, or None for enough.

    >>> next_probe([]), next_probe([(4096, 0.001)])
    (Probe(size=4096, repeats=9), Probe(size=32768, repeats=9))

    Sizes grow eightfold from 4 KiB. It is enough once two sizes in a row gave the same bytes per second within 5 %, or
    when the next size would take the time past `budget_s`; two points are always asked for. A size that there is no
    time to repeat is measured once.
    """
    if not points:
        return Probe(_SMALLEST_PROBE, _repeats(_SMALLEST_PROBE))
    size, seconds = points[-1]
    following = Probe(size * _PROBE_FACTOR, _repeats(size * _PROBE_FACTOR))
    if len(points) < 2:
        return following
    if following.size > _LARGEST_PROBE or _is_settled(points):
        return None
    spent = sum(_repeats(size) * seconds for size, seconds in points)
    possible = int((budget_s - spent) / (seconds * _PROBE_FACTOR))
    return Probe(following.size, min(following.repeats, possible)) if possible > 0 else None


def _is_settled(points: Sequence[tuple[int, float]]) -> bool:
    """Say whether the last two steps in size cost the same per byte, within 5 %."""
    if len(points) < 3:
        return False
    (a, a_s), (b, b_s), (c, c_s) = points[-3:]
    before, now = (b_s - a_s) / (b - a), (c_s - b_s) / (c - b)
    return abs(before - now) <= 0.05 * abs(now)


def _repeats(size: int) -> int:
    return 9 if size <= _SMALL else 3


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
