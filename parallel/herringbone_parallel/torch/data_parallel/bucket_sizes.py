"""Cuts a model's gradients into buckets, from the cost of a sum. Pure.

torch takes the sizes when the model is wrapped. At that time nobody knows how long the backward will take, or when each
gradient will be final. So the cut is the one that is never far from the best. Candidates are the best cuts for some
assumed backwards, and cuts into equal sizes. For each candidate, the worst case over all assumed backwards counts, as a
factor to the best cut; the candidate with the smallest worst case wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from herringbone_parallel.core.sums.buckets import cut_buckets, final_times, plan_buckets
from herringbone_parallel.core.sums.links import Cost

# The time that torch itself needs for one more bucket: a future, our callback, taking the interpreter's lock.
_TORCH_SECONDS = 1e-4
# Assumed backward times, as multiples of the time of all sums.
_BACKWARDS = (0.1, 0.3, 1.0, 3.0)
# Numbers of buckets of equal size.
_PARTS = (4, 8, 16, 32)

Tensors = Sequence[tuple[object, int]]


def plan(parameters: Sequence[torch.Tensor], cost: Cost) -> list[list[int]]:
    """Return the indices of each bucket's parameters; `parameters` are in the order in which gradients become final."""
    tensors = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
    cost = Cost(cost.alpha_s + _TORCH_SECONDS, cost.beta_s)
    backwards = _assumed_backwards([size for _, size in tensors], cost)
    best = [plan_buckets(tensors, ready_s=ready_s, cost=cost) for ready_s in backwards]
    ends = [_end_s(cut, tensors, ready_s, cost) for cut, ready_s in zip(best, backwards, strict=True)]

    def regret(cut: list[list[int]]) -> float:
        return max(_end_s(cut, tensors, ready_s, cost) / end_s for ready_s, end_s in zip(backwards, ends, strict=True))

    return min([*best, *_equal(tensors)], key=regret)


def bucket_bytes(parameters: Sequence[torch.Tensor], cost: Cost) -> list[int]:
    """Return the bytes of each bucket, in the order in which they are summed; `parameters` as the model defines them.

    >>> bucket_bytes([torch.zeros(1_000_000)] * 6, Cost(alpha_s=1e-4, beta_s=1e-7))
    [4000000, 4000000, 4000000, 4000000, 4000000, 4000000]
    """
    last_first = list(reversed(parameters))
    return [sum(last_first[i].numel() * last_first[i].element_size() for i in b) for b in plan(last_first, cost)]


def _assumed_backwards(sizes: Sequence[int], cost: Cost) -> list[list[float]]:
    """Return when each gradient is final, for several backwards: times in proportion to bytes, and to tensors."""
    sums_s = cost.seconds(sum(sizes))
    by_tensors = [1] * len(sizes)
    return [final_times(shape, share * sums_s) for share in _BACKWARDS for shape in (sizes, by_tensors)]


def _equal(tensors: Tensors) -> list[list[list[int]]]:
    total = sum(size for _, size in tensors)
    sizes = [max(1, total // part) for part in _PARTS]
    return [cut_buckets(tensors, first_bytes=max(1, size // 4), most_bytes=size) for size in sizes]


def _end_s(cut: list[list[int]], tensors: Tensors, ready_s: Sequence[float], cost: Cost) -> float:
    """Return the time at which the last sum is back."""
    end_s = 0.0
    for bucket in cut:
        end_s = max(end_s, ready_s[bucket[-1]]) + cost.seconds(sum(tensors[index][1] for index in bucket))
    return end_s
