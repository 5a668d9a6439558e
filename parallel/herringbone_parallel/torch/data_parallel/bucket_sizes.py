"""The sizes of DistributedDataParallel's buckets, from what a sum costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from herringbone_parallel.core.buckets import final_times, plan_buckets
from herringbone_parallel.core.links import Cost


def bucket_bytes(parameters: Sequence[torch.Tensor], cost: Cost) -> list[int]:
    """Return the bytes of each bucket, in the order in which they are summed; `parameters` as the model defines them.

    >>> bucket_bytes([torch.zeros(10)] * 6, Cost(alpha_s=1e-6, beta_s=1e-6))
    [40, 40, 40, 40, 40, 40]

    How long the backward takes is not known when the model is wrapped. It is taken to be as long as the sums: then both
    ends count, a first bucket that leaves early and a last one that is soon back, and either is little lost when the
    backward is much longer or shorter.
    """
    sizes = [parameter.numel() * parameter.element_size() for parameter in reversed(parameters)]
    tensors = [
        ((parameter.dtype, parameter.device), size) for parameter, size in zip(reversed(parameters), sizes, strict=True)
    ]
    ready_s = final_times(sizes, backward_s=cost.seconds(sum(sizes)))
    return [sum(sizes[index] for index in bucket) for bucket in plan_buckets(tensors, ready_s=ready_s, cost=cost)]
