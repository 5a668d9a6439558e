"""What LARS and LAMB share: all layers of a group at once, and a ratio of norms for each of them.

An operation on a list of tensors is a few kernels, whatever the number of layers. The ratios of all layers come to the
host in one copy, as torch's list operations take a number per tensor from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from herringbone_contract.errors import ParallelError

Tensors = list[torch.Tensor]
# On a processor what one operation writes should still be in the cache when the next one reads it. A device with
# launches to pay for takes everything at once.
_CPU_BYTES = 4 << 20


def is_fused(device: torch.device) -> bool:
    """Say whether torch updates parameters on this device in one pass; on a processor it does since 2.4."""
    return device.type in _get_fused_kernels_supported_devices()


def require_full_precision(parameters: Iterable[torch.Tensor], optimizer: str) -> None:
    """Raise `ParallelError` for parameters whose updates would be lost in rounding."""
    for parameter in parameters:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ParallelError(
                f"{optimizer}: a parameter of {tuple(parameter.shape)} is {parameter.dtype}; its steps are smaller than"
                " what that tells apart. Keep parameters in float32 and compute in less: recipes.Precision"
            )


def batches(parameters: Iterable[torch.Tensor]) -> Iterator[Tensors]:
    """Cut those that have a gradient into lists for one round of operations: of one device and type each."""
    kinds: dict[tuple[torch.device, torch.dtype], Tensors] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            raise ParallelError(f"a gradient of {tuple(parameter.shape)} is sparse: LARS and LAMB need the whole norm")
        kinds.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    for (device, _), tensors in kinds.items():
        yield from _cached(tensors) if device.type == "cpu" else [tensors]


def _cached(tensors: Tensors) -> Iterator[Tensors]:
    batch: Tensors = []
    held = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if batch and held + size > _CPU_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(tensor)
        held += size
    if batch:
        yield batch


def ratios(
    weights: Tensors, updates: Tensors, formula: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> list[float]:
    """Return `formula(norms of the weights, norms of the updates)`, 1 where one of the norms is 0.

    The formula gets two vectors with an element for each layer.
    """
    of_weights = torch.stack(torch._foreach_norm(weights))
    of_updates = torch.stack(torch._foreach_norm(updates))
    both = (of_weights > 0) & (of_updates > 0)
    found: list[float] = torch.where(both, formula(of_weights, of_updates), 1.0).tolist()
    return found


class MultiTensorOptimizer(torch.optim.Optimizer):
    """An optimizer that updates whole lists of parameters, those of `batches`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; return what `closure` does, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weights in batches(group["params"]):
                self._update(group, weights)
        return loss

    def _update(self, group: dict[str, Any], weights: Tensors) -> None:
        raise NotImplementedError
