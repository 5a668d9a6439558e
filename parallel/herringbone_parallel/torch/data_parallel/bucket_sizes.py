"""How a model's gradients are cut into buckets, from what a sum costs. Pure.

How long the backward takes, and when in it each gradient is final, is not known when the model is wrapped, and
torch takes the sizes then. So the cut is the one that is never far from the best: of those that would be best for some
backward, and some of equal sizes, the one that is late by the least factor in the backward that suits it worst.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from herringbone_parallel.core.sums.buckets import cut_buckets, final_times, plan_buckets
from herringbone_parallel.core.sums.links import Cost

# What torch itself takes for one bucket more: its future, our callback, a turn of the interpreter's lock.
_TORCHS_SECONDS = 1e-4
# Backwards, as multiples of the time of the sums.
_BACKWARDS = (0.1, 0.3, 1.0, 3.0)
# Equal sizes, as parts of all bytes.
_PARTS = (4, 8, 16, 32)

Tensors = Sequence[tuple[object, int]]


def plan(parameters: Sequence[torch.Tensor], cost: Cost) -> list[list[int]]:
    """Return the indices of each bucket's parameters; they are given in the order in which gradients become final."""
    tensors = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
    cost = Cost(cost.alpha_s + _TORCHS_SECONDS, cost.beta_s)
    backwards = _backwards([size for _, size in tensors], cost)
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


def _backwards(sizes: Sequence[int], cost: Cost) -> list[list[float]]:
    """Return when each gradient is final, for backwards that go by bytes and such that go by tensors."""
    sums_s = cost.seconds(sum(sizes))
    by_tensors = [1] * len(sizes)
    return [final_times(shape, share * sums_s) for share in _BACKWARDS for shape in (sizes, by_tensors)]


def _equal(tensors: Tensors) -> list[list[list[int]]]:
    total = sum(size for _, size in tensors)
    sizes = [max(1, total // part) for part in _PARTS]
    return [cut_buckets(tensors, first_bytes=max(1, size // 4), most_bytes=size) for size in sizes]


def _end_s(cut: list[list[int]], tensors: Tensors, ready_s: Sequence[float], cost: Cost) -> float:
    """Return when the last sum is back."""
    end_s = 0.0
    for bucket in cut:
        end_s = max(end_s, ready_s[bucket[-1]]) + cost.seconds(sum(tensors[index][1] for index in bucket))
    return end_s
