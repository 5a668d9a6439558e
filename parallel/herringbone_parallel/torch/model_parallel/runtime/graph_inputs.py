"""Inputs of a segment's autograd graph: how the data of a placed tensor enters a call that runs on this rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.tape import Entrance, Segment


def enter(segment: Segment, leaf: Any) -> Any:
    """Return the tensor that represents a placed one in the segment's graph; any other leaf as it is."""
    if not isinstance(leaf, PlacedTensor):
        return leaf
    value = leaf.value
    # A parameter is a leaf of every graph already. Without gradients there is no graph.
    if value.flow is None or isinstance(value.local, nn.Parameter) or not torch.is_grad_enabled():
        return value.local
    if value.flow.segment is segment:
        # Made by an earlier call of the same segment: autograd goes on in the same graph.
        return value.made
    entrance = segment.entrances.get(value.serial)
    if entrance is None:
        assert value.local is not None
        # The segment's graph must end here, so that its backward stops and leaves the gradient at this leaf.
        start = value.local.detach().requires_grad_()
        alias = _Alias.apply(start)  # type: ignore[no-untyped-call]
        entrance = segment.entrances[value.serial] = Entrance(value.anchor(), start, alias)
    return entrance.tensor


class _Alias(torch.autograd.Function):
    """Return the same data as a tensor that is no leaf.

    Autograd refuses in-place writes to a leaf that requires a gradient, and a module may write into its input, as
    `nn.ReLU(inplace=True)` does.
    """

    @staticmethod
    def forward(_: Any, leaf: torch.Tensor) -> torch.Tensor:
        # Not a view: an output that is a view of a custom function's input refuses in-place writes, too.
        alias = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return alias.set_(leaf.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
