"""Values that share memory: which of them an in-place operation changes in one process, and not here.

An in-place operation gives the target a new value (`operations`). In one process it would also change the target's
views, and the tensor whose view the target is:

    row = h[0]          row's memory is a part of h's
    row.mul_(2)         here, row has a new value, and h has its old one
    self.second(h)      refused: in one process h would have changed, too

Only a rank that ran the call which made the view knows of it. So each rank marks the values that it knows to be out of
date, and the first use of such a value ends the step on all ranks. A value that nobody uses again does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value
from herringbone_parallel.torch.model_parallel.runtime.regions import LOST, Memory, Region, Write, overlap
from herringbone_parallel.torch.model_parallel.runtime.tape import Segment


def link(arguments: Sequence[Any], results: Sequence[Value]) -> None:
    """Note which results of a call share memory with its arguments, or with each other.

    Tensors among the arguments that are not placed are the script's own.
    """
    # By the identity of the storage. The arguments come first, so that each has an entry before the results.
    first: dict[int | None, Value] = {}
    for value in (*(leaf.value for leaf in arguments if isinstance(leaf, PlacedTensor)), *results):
        key = storage_of(value.local)
        if key is None:
            continue
        other = first.setdefault(key, value)
        if other is not value:
            _memory_of(other).add(value)
    for leaf in arguments:
        shared = first.get(storage_of(leaf)) if type(leaf) is torch.Tensor else None
        if shared is not None:
            _memory_of(shared).of_script = True


def note_write(value: Value, made: int, name: str) -> None:
    """Mark the other values that the in-place operation `name` on `value` would have changed in one process.

    `made` is the serial of the target's new value. Raises `ParallelError` if one of them cannot be marked, because it
    is a parameter or a tensor of the script.
    """
    memory = value.memory
    if memory is None or value.local is None:
        return
    if memory.of_script:
        raise ParallelError(
            f"{name} on a tensor of a distributed model that shares its memory with a tensor of the script, of which"
            " the other ranks have a copy of their own: write into a clone() of it"
        )
    for other in memory.living():
        if other is value or not _overlapping(value, other):
            continue
        refuse_parameter(other, name)
        # After two writes no single tensor has what this value lacks.
        other.missed = LOST if other.missed is not None else Write(made, Region.of(value.local))


def note_parameter_write(value: Value) -> None:
    """Mark the values that do not follow a write of its owner into the parameter `value`: data on other ranks."""
    if value.memory is None:
        return
    if value.memory.of_script:
        raise ParallelError(
            "a write into a parameter that shares its memory with a tensor of the script, of which the other ranks have"
            " a copy of their own: give the parameter a clone() of it"
        )
    for other in value.memory.living():
        if other is not value and other.holders != {value.owner} and _overlapping(value, other):
            other.missed = LOST


def lasting(value: Value) -> torch.Tensor:
    """Return the value's data on this rank, which no later write into a parameter changes."""
    assert value.local is not None
    # Parameters with gradients change between steps alone.
    if any(other.parameter is not None and other.flow is None for other in _sharing(value)):
        with torch._C.DisableTorchFunctionSubclass():
            return value.local.clone()
    return value.local


def refuse_alias(value: Value) -> None:
    """Raise `ParallelError` for new data of a parameter that is the data of another one."""
    if any(other.parameter is not None or isinstance(other.made, torch.nn.Parameter) for other in _sharing(value)):
        raise ParallelError(
            "parameter.data = ... with the memory of another parameter, which later changes of that one would change on"
            " its own rank only: use parameter.data.copy_(...)"
        )


def note_module_write(value: Value, segment: Segment, name: str) -> None:
    """Mark the values that do not follow a write of module `name`, run by this rank, into its argument `value`."""
    if value.memory is not None and value.memory.of_script:
        raise ParallelError(
            f"module {name} writes into its argument, which shares its memory with a tensor of the script, of which"
            " the other ranks have a copy of their own: pass a clone() of it"
        )
    for other in _sharing(value):
        if (other is value or _overlapping(value, other)) and not _follows(other, segment):
            other.missed = LOST


def _follows(value: Value, segment: Segment) -> bool:
    """Say whether data and graph of a value are right after a write by the code of one rank."""
    if value.holders != {segment.rank} or value.local is None:
        return False
    if value.flow is None:
        return not value.local.requires_grad
    # In one autograd graph torch itself follows the write, also through views. A parameter has no other graph.
    return value.flow.segment is segment or isinstance(value.local, torch.nn.Parameter)


def refuse_parameter(value: Value, name: str) -> None:
    """Raise `ParallelError` if the value is a parameter, or if its gradient comes to one."""
    if isinstance(value.made, torch.nn.Parameter) or (value.flow is not None and value.flow.segment is None):
        raise ParallelError(
            f"{name} on a parameter of a distributed model inside a step, where other microbatches use it: change"
            " parameters outside of the step, on the rank that has them (model.local_named_parameters()). A parameter"
            " that takes no gradients may be changed in the step, by its own name and not through a view of it: call"
            " requires_grad_(False) before the step"
        )


def catch_up(value: Value, index: Any, source: Value) -> bool:
    """Forget the write that `value` has missed, if `value[index] = source` brings exactly the result of that write.

    Python turns `h[0] *= 2` into `row = h[0]; row *= 2; h[0] = row`. Returns whether it has forgotten one.
    """
    missed = value.missed
    if missed is None or missed.made != source.serial or value.local is None:
        return False
    # An index with a tensor in it copies. The region is then in another storage, but it has no such region either.
    with torch.no_grad():
        part = value.local[index]
    same = storage_of(part) == storage_of(value.local) and Region.of(part) == missed.region
    if same:
        value.missed = None
    return same


def check_current(value: Value) -> None:
    """Raise `ParallelError` for a value that has missed a write."""
    if value.missed is not None:
        raise ParallelError(
            f"a tensor {value.spec} was changed through another tensor that shares its memory, such as a view of it,"
            " and is used afterwards. The ranks of a pipeline do not write through views: write into the tensor itself"
            " (h[0] = 2 * h[0] instead of h[0].mul_(2)) before other views of it are made, or into a clone() that"
            " nothing shares"
        )


def _overlapping(value: Value, other: Value) -> bool:
    # A member of the memory may be in another storage here: the rank has received its data.
    if value.local is None or other.local is None or storage_of(value.local) != storage_of(other.local):
        return False
    if value.local.dtype.itemsize != other.local.dtype.itemsize:
        # Their regions count different elements. `view(dtype)` is rare, so take it for an overlap.
        return True
    return overlap(Region.of(value.local), Region.of(other.local))


def _sharing(value: Value) -> list[Value]:
    """Return the values that share the value's memory, with the value itself."""
    return [value] if value.memory is None else value.memory.living()


def _memory_of(value: Value) -> Memory:
    if value.memory is None:
        Memory().add(value)
    assert value.memory is not None
    return value.memory


def storage_of(tensor: torch.Tensor | None) -> int | None:
    """Return the identity of a tensor's storage; None for a tensor without one, such as a sparse one."""
    if tensor is None or tensor.layout is not torch.strided:
        return None
    # A parameter of code that runs on every rank would take the question for a call of every rank.
    with torch._C.DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage()._cdata)
