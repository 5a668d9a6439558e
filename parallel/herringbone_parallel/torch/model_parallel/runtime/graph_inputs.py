"""Inputs of a segment's autograd graph: how the data of a placed tensor enters a call that runs on this rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime import memory
from herringbone_parallel.torch.model_parallel.runtime.operations import SET_DATA, name_of, writes
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.tape import Entrance, Segment


class Inputs:
    """The arguments of one call on this rank.

    inputs = Inputs(segment)
    result = function(*replace_leaves(args, inputs.enter))
    inputs.note_writes("block.relu")
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        # Each argument, the tensor in its place, and how often that was written into before the call.
        self._entered: list[tuple[Any, torch.Tensor, int]] = []
        # The storages of parameters, or of the copies that this rank has received.
        self._parameters: set[int | None] = set()

    def enter(self, leaf: Any) -> Any:
        """Return what the call gets for an argument."""
        real = enter(self._segment, leaf)
        if isinstance(leaf, PlacedTensor) and leaf.value.parameter is not None:
            self._parameters.add(memory.storage_of(real))
        # An inference tensor counts no writes. A parameter would take the question for a call of every rank.
        if isinstance(real, torch.Tensor) and not isinstance(real, nn.Parameter) and not real.is_inference():
            self._entered.append((leaf, real, real._version))
        return real

    def guarded(self, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return the call of `name`, which raises `ParallelError` before it writes into a parameter that it gets."""
        if not self._parameters:
            return call

        def guarded_call() -> Any:
            with _Guard(name, self._parameters):
                return call()

        return guarded_call

    def note_writes(self, name: str) -> None:
        """Note into which arguments the module `name` has written.

        Raises `ParallelError` for a tensor of the script: the other ranks have a copy of their own.
        """
        for leaf, real, version in self._entered:
            if real._version == version:
                continue
            if not isinstance(leaf, PlacedTensor):
                raise ParallelError(
                    f"module {name} writes into its argument of shape {list(real.shape)}, a tensor of the script, and"
                    " the other ranks of the pipeline do not see the change: pass a clone() of it, or make it a buffer"
                    " of the module"
                )
            memory.note_module_write(leaf.value, self._segment, name)


class _Guard(TorchFunctionMode):
    """Refuse writes into these storages, also through `.data`, which torch counts in no version."""

    def __init__(self, name: str, storages: set[int | None]) -> None:
        super().__init__()
        self._name, self._storages = name, storages

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch.compile reads this method, and cannot read the rest of it.
        if not torch.compiler.is_compiling():
            into = kwargs.get("out")
            if into is None and (func == SET_DATA or writes(name_of(func), kwargs)):
                into = [*args, *kwargs.values()][0]
            if any(memory.storage_of(leaf) in self._storages for leaf in leaves_of(into) if torch.is_tensor(leaf)):
                raise ParallelError(
                    f"{self._name} writes into a parameter of the model that it gets as an argument, and the other"
                    " ranks of the pipeline do not see the change: write in code that runs on every rank, such as the"
                    " forward of the module that has both, under torch.no_grad()"
                )
        return func(*args, **kwargs)


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
