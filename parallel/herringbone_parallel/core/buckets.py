"""Which gradients travel together: an all-reduce per parameter would cost a message's latency each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def cut_buckets(tensors: Sequence[tuple[Hashable, int]], *, first_bytes: int, most_bytes: int) -> list[list[int]]:
    """Cut a sequence of tensors, given as (kind, bytes), into buckets; return the indices in each.

    A bucket holds tensors of one kind (dtype and device), as they share a buffer, and is full once it has `most_bytes`;
    the first one once it has `first_bytes`, so that the network has something to do early. Tensors are given in the
    order in which they become ready, and a bucket stands where its last tensor does.

    >>> cut_buckets([("f", 1), ("f", 3), ("h", 2), ("f", 3), ("f", 3)], first_bytes=1, most_bytes=6)
    [[0], [2], [1, 3], [4]]
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index, (kind, size) in enumerate(tensors):
        open_buckets.setdefault(kind, []).append(index)
        filled[kind] = filled.get(kind, 0) + size
        if filled[kind] >= (most_bytes if closed else first_bytes):
            closed.append(open_buckets.pop(kind))
            filled[kind] = 0
    return sorted([*closed, *open_buckets.values()], key=lambda bucket: bucket[-1])
