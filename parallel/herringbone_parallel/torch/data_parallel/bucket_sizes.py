"""How a model's gradients are cut into buckets, from what a sum costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from herringbone_parallel.core.buckets import final_times, plan_buckets
from herringbone_parallel.core.links import Cost


def plan(parameters: Sequence[torch.Tensor], cost: Cost) -> list[list[int]]:
    """Return the indices of each bucket's parameters; they are given in the order in which gradients become final.

    How long the backward takes is not known when the model is wrapped. It is taken to be as long as the sums: then both
    ends count, a first bucket that leaves early and a last one that is soon back, and little is lost when the backward
    is much longer or shorter.
    """
    tensors = [((p.dtype, p.device), p.numel() * p.element_size()) for p in parameters]
    sizes = [size for _, size in tensors]
    return plan_buckets(tensors, ready_s=final_times(sizes, backward_s=cost.seconds(sum(sizes))), cost=cost)


def bucket_bytes(parameters: Sequence[torch.Tensor], cost: Cost) -> list[int]:
    """Return the bytes of each bucket, in the order in which they are summed; `parameters` as the model defines them.

    >>> bucket_bytes([torch.zeros(10)] * 6, Cost(alpha_s=1e-6, beta_s=1e-6))
    [40, 40, 40, 40, 40, 40]
    """
    last_first = list(reversed(parameters))
    return [sum(last_first[i].numel() * last_first[i].element_size() for i in b) for b in plan(last_first, cost)]
