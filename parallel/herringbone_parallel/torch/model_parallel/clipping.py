"""Gradient clipping by the norm over the whole model, of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import state


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale the gradients down to a global norm of at most `max_norm`, and return the norm before that.

        smp.clip_grad_norm_(model.parameters(), 1.0)

    Every rank calls it, between the step function and `optimizer.step()`. The norm and the result are those of
    `torch.nn.utils.clip_grad_norm_` in one process: replicas have the same gradients, which count once.
    """
    if not norm_type > 0:
        raise ParallelError(f"norm_type must be above 0 (math.inf for the largest element), not {norm_type!r}")
    library = state.get()
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [parameter.grad for parameter in clipped if parameter.grad is not None]
    # In float64, so that the result hardly depends on the partition.
    total = torch.zeros((), dtype=torch.float64, device=library.device)
    largest = math.isinf(norm_type)
    for gradient in gradients:
        norm = torch.linalg.vector_norm(gradient, norm_type).to(total)
        total = torch.maximum(total, norm) if largest else total + norm**norm_type
    operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    dist.all_reduce(total, operation, group=library.groups[CommGroup.MP_GROUP])
    if not largest:
        total = total ** (1.0 / norm_type)
    # torch's own formula; above 1 there is nothing to clip.
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.detach().mul_(scale.to(gradient))
    return total.to(torch.get_default_dtype())
