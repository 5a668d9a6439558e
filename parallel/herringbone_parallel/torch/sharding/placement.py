"""Choose the dimension along which a parameter is split over the ranks that share it.

    shard_dimension((2, 64), 4)     # 1: along the first dimension two of the four ranks would hold nothing

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def shard_dimension(shape: Sequence[int], degree: int, *, allow_empty: bool = False) -> int:
    """Return the dimension along which to split a parameter of this shape over `degree` ranks.

    That is the first one, as in torch. Where it has fewer rows than ranks, some ranks would hold nothing: then it is
    the first dimension that the ranks divide. A parameter without one, such as a bias of two elements, is split along
    the first in any case, and so is a parameter without elements, and every parameter with `allow_empty`.

    >>> shard_dimension((2, 64), 4)
    1
    >>> shard_dimension((2, 64), 4, allow_empty=True)
    0
    >>> shard_dimension((2,), 4)
    0
    """
    if allow_empty or not shape or shape[0] >= degree or 0 in shape:
        return 0
    # torch splits along another dimension into equal parts only.
    return next((dim for dim, size in enumerate(shape) if dim and size % degree == 0), 0)
