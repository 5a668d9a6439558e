"""Gradients of values inside a step: `retain_grad`, `tensor.grad` and `torch.autograd.grad` on placed tensors.

Every rank runs these calls. Nothing is sent for them: which values have a gradient follows from the tape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.runtime.memory import check_current
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.shapes import TensorSpec
from herringbone_parallel.torch.model_parallel.runtime.tape import Tape

_NO_GRAPH = (
    "torch.autograd.grad between tensors of a distributed model needs a graph that is on one rank, with no call of"
    " another rank since: put the modules between inputs and outputs on one partition, or compute the gradient inside"
    " a module"
)


class Caller(Protocol):
    """The part of `Microbatch` that gradients need."""

    tape: Tape

    def call(
        self,
        name: str,
        target: int | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        identity: Hashable = None,
    ) -> Any: ...
    def place(self, owner: int, spec: TensorSpec, made: torch.Tensor | None) -> PlacedTensor: ...


def retain(caller: Caller, tensor: PlacedTensor) -> None:
    """Keep the gradient of a value for `gradient`, as `Tensor.retain_grad` does.

    Raises `ParallelError` for a value without a gradient, and under `zero_bubble`, whose backwards have two parts.
    """
    value = tensor.value
    check_current(value)
    if value.flow is None:
        raise ParallelError("retain_grad() of a tensor that depends on no parameter that requires a gradient")
    if caller.tape.defers:
        raise ParallelError(
            "retain_grad() under pipeline 'zero_bubble', whose backwards have two parts: set `pipeline` to interleaved"
            " or simple"
        )
    value.retained = True
    # The rank that made the value has its graph, where the gradients of all its uses come together.
    if value.made is not None:
        value.made.retain_grad()


def gradient(caller: Caller, tensor: PlacedTensor) -> PlacedTensor | None:
    """Return `tensor.grad`: None before a backward, and for a value without `retain_grad`.

    Raises `ParallelError` for a parameter, to whose gradient other microbatches add meanwhile.
    """
    value = tensor.value
    if value.flow is not None and value.flow.segment is None:
        raise ParallelError(
            "the gradient of a parameter inside a step, where other microbatches add to it: read parameter.grad after"
            " the step, and call zero_grad() before it"
        )
    if value.flow is None or not value.retained or not value.flow.reached:
        return None
    made = None
    if value.made is not None:
        # All ranks must agree that there is a gradient. A function may have returned None for it on this rank.
        made = torch.zeros_like(value.made) if value.made.grad is None else value.made.grad
    return caller.place(value.owner, TensorSpec(value.spec.shape, value.spec.dtype, False), made)


def differentiate(caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `torch.autograd.grad` where the graph between its outputs and its inputs is, which must be one segment.

    A call of another rank ends a segment. So each way from one value of a segment to another is inside the segment.
    """
    outputs, inputs = args[0], args[1] if len(args) > 1 else kwargs["inputs"]
    values = [leaf.value for leaf in leaves_of((outputs, inputs)) if isinstance(leaf, PlacedTensor)]
    flows = [value.flow for value in values if value.flow is not None]
    segment = caller.tape.segment(values[0].owner)
    if len(flows) < len(values) or any(flow.segment is not segment for flow in flows):
        raise ParallelError(_NO_GRAPH)
    # Parameters and the script's own tensors may be used on the other side of an entrance, too.
    complete = all(isinstance(leaf, PlacedTensor) for leaf in leaves_of(inputs))

    def on_home(*real: Any, **named: Any) -> Any:
        if segment.entrances and not complete:
            raise ParallelError(_NO_GRAPH)
        return torch.autograd.grad(*real, **named)

    return caller.call("torch.autograd.grad", None, on_home, args, kwargs, identity=torch.autograd.grad)
