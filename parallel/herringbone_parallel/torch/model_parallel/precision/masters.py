"""Master weights: float32 copies of 16-bit parameters, which the optimizer updates instead of the parameters.

An update is often smaller than the distance between two 16-bit numbers and would be lost in the parameter itself.

    [1] take_gradients    parameter.grad, 16 bit and scaled  ->  copy.grad, float32 and unscaled
    [2] the optimizer updates the copies
    [3] publish           copy  ->  parameter, rounded
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime.microbatch import OWNER_ATTRIBUTE

HALF_TYPES = (torch.float16, torch.bfloat16)


class _Pair(NamedTuple):
    parameter: nn.Parameter
    copy: nn.Parameter


class MasterWeights:
    """The float32 copies of the 16-bit parameters of one optimizer.

        masters = MasterWeights()
        group["params"] = [masters.keep(parameter) for parameter in group["params"]]
        masters.refresh()
        masters.take_gradients(1 / scale)
        optimizer.step()
        masters.publish()

    The parameters are this rank's: after the partition, and after a division among shards.
    """

    def __init__(self) -> None:
        # Both by the identity of the parameter, which the pair keeps alive.
        self._pairs: dict[int, _Pair] = {}
        # By the identity of the copy.
        self._parameters: dict[int, nn.Parameter] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def keep(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the copy of a 16-bit parameter, made at the first call; any other parameter as it is."""
        if parameter.dtype not in HALF_TYPES:
            return parameter
        if id(parameter) not in self._pairs:
            copy = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
            if hasattr(parameter, OWNER_ATTRIBUTE):
                # For clipping: the copy, too, is a part of the model that no other rank of the pipeline has.
                setattr(copy, OWNER_ATTRIBUTE, getattr(parameter, OWNER_ATTRIBUTE))
            self._pairs[id(parameter)] = _Pair(parameter, copy)
            self._parameters[id(copy)] = parameter
        return self._pairs[id(parameter)].copy

    def trained(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return what the optimizer updates for a parameter: its copy, or the parameter itself."""
        pair = self._pairs.get(id(parameter))
        return parameter if pair is None else pair.copy

    def parameter_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the parameter of a copy; any other tensor as it is."""
        return self._parameters.get(id(tensor), tensor)

    def copies(self) -> list[nn.Parameter]:
        """Return all copies."""
        return [pair.copy for pair in self._pairs.values()]

    @torch.no_grad()
    def take_gradients(self, factor: float) -> None:
        """Give each copy its parameter's gradient, times `factor`."""
        for parameter, copy in self._pairs.values():
            gradient = parameter.grad
            copy.grad = None if gradient is None else gradient.to(torch.float32).mul_(factor)

    def drop_gradients(self, *, set_to_none: bool) -> None:
        """Drop the gradients of the parameters, as `zero_grad` does; the optimizer drops those of the copies."""
        for parameter, _ in self._pairs.values():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over parameters that somebody else has changed, such as `model.load_state_dict`.

        A value that equals its rounded copy keeps the copy's digits. So the order in which the states of model and
        optimizer are loaded does not matter.
        """
        # By value: torch counts no version for a write through `parameter.data`.
        pairs = self._pairs.values()
        flags = [(parameter != copy.to(parameter.dtype)).any() for parameter, copy in pairs]
        # All flags at once, so that a GPU is asked once.
        for (parameter, copy), changed in zip(pairs, torch.stack(flags).tolist() if flags else (), strict=True):
            if changed:
                copy.copy_(torch.where(parameter == copy.to(parameter.dtype), copy, parameter.float()))

    @torch.no_grad()
    def publish(self) -> None:
        """Give each parameter the rounded value of its copy."""
        for parameter, copy in self._pairs.values():
            parameter.copy_(copy)

    def digits(self, parameter: torch.Tensor, *, always: bool = False) -> torch.Tensor | None:
        """Return the copy if it has digits that the parameter lacks, or `always`; None without such a copy."""
        pair = self._pairs.get(id(parameter))
        # A rank without an element of a shared parameter has no entry for it.
        if pair is None or not pair.copy.numel():
            return None
        if not always and torch.equal(pair.copy, pair.parameter.float()):
            return None
        return pair.copy.detach()

    @torch.no_grad()
    def load(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """Give a parameter's copy the values of a checkpoint, if it has a copy."""
        pair = self._pairs.get(id(parameter))
        if pair is not None:
            pair.copy.copy_(values)
