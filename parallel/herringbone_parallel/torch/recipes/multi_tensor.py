"""The common part of LARS and LAMB: operations on all layers of a group at once, and a ratio of norms for each layer.

An operation on a list of tensors is a few kernels, whatever the number of layers. The ratios of all layers are copied
to the host in one copy, because torch's list operations expect one number per tensor there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from herringbone_contract.errors import ParallelError

Tensors = list[torch.Tensor]


def batches(parameters: Iterable[torch.Tensor], cache_bytes: int) -> Iterator[Tensors]:
    """Yield lists of the parameters with a gradient, for one round of operations each: of one device and one type."""
    kinds: dict[tuple[torch.device, torch.dtype], Tensors] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            raise ParallelError(f"a gradient of {tuple(parameter.shape)} is sparse: LARS and LAMB need the whole norm")
        # List operations need tensors of one device and one type.
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for (device, _), tensors in kinds.items():
        yield from _cache_sized(tensors, cache_bytes) if device.type == "cpu" else [tensors]


def _cache_sized(tensors: Tensors, cache_bytes: int) -> Iterator[Tensors]:
    batch: Tensors = []
    batch_bytes = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if batch and batch_bytes + size > cache_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(tensor)
        batch_bytes += size
    if batch:
        yield batch


def ratios(
    weights: Tensors, updates: Tensors, formula: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> list[float]:
    """Return `formula(norms of the weights, norms of the updates)` for each layer, and 1 if one of its norms is 0.

    The formula gets two vectors with an element for each layer.
    """
    weight_norms = torch.stack(torch._foreach_norm(weights))
    update_norms = torch.stack(torch._foreach_norm(updates))
    # A layer of zeros, as biases often start, would otherwise never move, or divide by zero.
    both = (weight_norms > 0) & (update_norms > 0)
    layer_ratios: list[float] = torch.where(both, formula(weight_norms, update_norms), 1.0).tolist()
    return layer_ratios


class MultiTensorOptimizer(torch.optim.Optimizer):
    """An optimizer that updates whole lists of parameters, which `batches` yields."""

    # On a processor, the results of one operation should still be in the cache when the next one reads them. On a
    # device, each launch costs time, so one list holds everything.
    _cache_bytes = 4 << 20

    def _is_fused(self, device: torch.device) -> bool:
        """Return True if torch updates parameters on this device in one pass; on a processor it does since 2.4."""
        return device.type in _get_fused_kernels_supported_devices()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; raises `ParallelError` for parameters in 16 bits, whose updates would be lost in rounding."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise ParallelError(
                    f"{type(self).__name__}: a parameter of {tuple(parameter.shape)} is {parameter.dtype}; its steps"
                    " are smaller than its precision. Keep parameters in float32 and compute in 16 bits:"
                    " recipes.Precision"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; return the result of `closure`, if there is one."""
        loss = None
        if closure is not None:
            # `step` runs without gradients, but a closure computes them.
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weights in batches(group["params"], self._cache_bytes):
                self._update(group, weights)
        return loss

    def _update(self, group: dict[str, Any], weights: Tensors) -> None:
        raise NotImplementedError
