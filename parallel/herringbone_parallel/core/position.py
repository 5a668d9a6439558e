"""The samples of an epoch that are left, for whichever ranks go on. Pure.

An epoch has one order of samples, which depends on its seed and number only. Of `ranks` ranks, each takes every
`ranks`-th sample from its own number on, so after n samples each, the first `n * ranks` of the order are consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice


def share(order: Sequence[int], consumed: int, ranks: int, rank: int, drop_last: bool) -> list[int]:
    """Return what a rank takes of an epoch of which the first `consumed` samples were used.

    >>> share([7, 3, 5, 1, 4], 2, 2, 1, drop_last=False), share([7, 3, 5, 1, 4], 2, 2, 1, drop_last=True)
    ([1, 7], [1])

    All ranks take equally many: the order's begin is repeated to fill the last round, or with `drop_last` what does not
    fill one is left out.
    """
    rest = order[consumed:]
    if drop_last:
        return list(rest[rank : len(rest) // ranks * ranks : ranks])
    filled = list(rest[rank::ranks])
    missing = -len(rest) % ranks
    # The ranks from `ranks - missing` on have one sample less than the first.
    if missing and rank >= ranks - missing:
        filled += islice(cycle(order), rank - (ranks - missing), rank - (ranks - missing) + 1)
    return filled
