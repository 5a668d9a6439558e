"""Tensor-parallel parameters under torch's `FullyShardedDataParallel`, which flattens parameters.

The class takes DTensors of a tensor group, and then computes wrong gradients (torch 2.13). So each rank gives it its
parts as plain parameters. The names of the parameters that are cut are kept, for the norm of all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.layers import show_as_it_is

# Wrapped models, with the names of the parameters of which the ranks of a tensor group have different parts.
_cut: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def make_plain(model: nn.Module) -> frozenset[str]:
    """Replace each DTensor among the parameters by this rank's part; return the names of those that are cut."""
    from torch.distributed.tensor import DTensor

    plain: dict[torch.Tensor, nn.Parameter] = {}
    cut = set()
    for path, module in model.named_modules():
        show_as_it_is(module)
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, DTensor):
                if parameter not in plain:
                    plain[parameter] = nn.Parameter(parameter.to_local().detach(), parameter.requires_grad)
                module._parameters[name] = plain[parameter]
                if any(placement.is_shard() for placement in parameter.placements):
                    cut.add(f"{path}.{name}" if path else name)
    return frozenset(cut)


def remember(wrapped: nn.Module, cut: frozenset[str]) -> None:
    """Keep the names that `make_plain` has returned for a model that is wrapped now."""
    _cut[wrapped] = cut


def forget() -> None:
    """Forget the wrapped models of this process."""
    _cut.clear()


def are_plain() -> bool:
    """Say whether a model of this process has plain parts, whose names mean different values on different ranks."""
    return bool(_cut)


def clip(wrapped: nn.Module, max_norm: float, norm_type: float, tensor: dist.ProcessGroup) -> torch.Tensor:
    """Scale the gradients of a wrapped model by their norm over the shards and the tensor group; return that norm.

    Raises `ParallelError` for a model that was wrapped without `use_orig_params`.
    """
    from torch.distributed.fsdp import ShardingStrategy

    cut = _cut.get(wrapped, frozenset())
    gradients = list(_gradients(wrapped))
    operation = dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM
    device = gradients[0][1].device if gradients else torch.device("cpu")
    # The gradients of parameters that are cut, and those that every rank of the tensor group has.
    totals = torch.zeros(2, device=device)
    for name, gradient in gradients:
        if gradient.numel():
            index = 0 if name in cut else 1
            sizes = gradient.float().abs()
            if math.isinf(norm_type):
                totals[index] = torch.maximum(totals[index], sizes.max())
            else:
                totals[index] += sizes.pow(norm_type).sum()
    # Declared as Any: a module's attributes are tensors or modules for mypy.
    strategy: Any = wrapped.sharding_strategy
    if strategy is not ShardingStrategy.NO_SHARD:
        dist.all_reduce(totals, operation, group=wrapped.process_group)
    dist.all_reduce(totals[:1], operation, group=tensor)
    norm = totals.max() if math.isinf(norm_type) else totals.sum().pow(1 / norm_type)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))
    return norm


def _gradients(wrapped: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in wrapped.named_parameters():
        if "_flat_param" in name:
            raise ParallelError(
                "gradients of a tensor-parallel model are clipped parameter by parameter: give FullyShardedDataParallel"
                " use_orig_params=True"
            )
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        if parameter.grad is not None:
            yield name, parameter.grad
