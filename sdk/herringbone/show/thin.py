"""Thin long series of values for a chart: of each bucket the smallest and the largest value stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def thinned(values: Sequence[float], buckets: int) -> list[int]:
    """Return the positions of the values that a chart needs, in order, at most `3 * buckets + 2`.

    >>> thinned([0.0, 9.0, 1.0, 2.0, -5.0, 3.0, 4.0, 4.0], 2)
    [0, 1, 4, 6, 7]

    A chart of `buckets` pixels then looks as it does with all values: no peak is lost. Of values that are not finite,
    the first one of a bucket stays.
    """
    count = len(values)
    if count <= 2 * buckets + 2:
        return list(range(count))
    kept = {0, count - 1}
    for bucket in range(buckets):
        begin, end = bucket * count // buckets, (bucket + 1) * count // buckets
        part = values[begin:end]
        # One sum in C finds a NaN or an infinity. A sum that overflows only costs the slow way.
        if not math.isfinite(sum(part)):
            odd = next((at for at, value in enumerate(part) if not math.isfinite(value)), None)
            if odd is not None:
                kept.add(begin + odd)
            places = [at for at, value in enumerate(part) if math.isfinite(value)]
            if not places:
                continue
            kept.add(begin + min(places, key=part.__getitem__))
            kept.add(begin + max(places, key=part.__getitem__))
            continue
        kept.add(begin + part.index(min(part)))
        kept.add(begin + part.index(max(part)))
    return sorted(kept)


def rounded(value: float | None) -> float | None:
    """Return a value with six digits, which is more than a chart shows; None for one that is not finite.

    >>> rounded(1 / 3), rounded(float("nan"))
    (0.333333, None)
    """
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
