"""Describe an operation: its key and its work.

    key_of(torch.ops.aten.mm.default, (a, b), {})       # equal for calls that do the same work

Two calls with one key allocate the same outputs, so the second one needs no shape computation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from herringbone_parallel.core.prediction.measurement import Operation
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.operation_work import is_free, work


class Unkeyed(Exception):
    """An argument that has no description, such as an object of an extension."""


def tensors_of(structure: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in leaves_of(structure) if isinstance(leaf, torch.Tensor)]


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; of a sparse tensor, those of the elements that it has."""
    if tensor.layout is not torch.strided:
        return tensor._nnz() * tensor.element_size() if tensor.is_sparse else 0
    return tensor.numel() * tensor.element_size()


def key_of(value: Any) -> Hashable:
    """Return a description of arguments that is equal for equal work. Raises `Unkeyed` for an unknown object."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise Unkeyed(str(value.layout))
        return (torch.Tensor, value.dtype, value.size(), value.stride(), value.device.type)
    if isinstance(value, (list, tuple)):
        return tuple([key_of(item) for item in value])
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        # 1, 1.0 and True are equal, and their results have different types.
        return (type(value), value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return value
    raise Unkeyed(type(value).__name__)


def describe(func: Any, args: Any, kwargs: Any, result: Any, *, fallback: bool) -> Operation:
    """Return the operation of a call, with the work of its shapes."""
    inputs, outputs = tensors_of((args, kwargs)), tensors_of(result)
    free = is_free(func)
    floating = [tensor.dtype for tensor in (*inputs, *outputs) if tensor.is_floating_point()]
    dtypes = floating or [tensor.dtype for tensor in (*inputs, *outputs)]
    return Operation(
        name=str(func),
        shapes=tuple(tuple(tensor.shape) for tensor in inputs),
        dtype=_name(dtypes[0]) if dtypes else "",
        operations=0 if free else work(func, args, kwargs, result),
        moved_bytes=0 if free else sum(map(bytes_of, inputs)) + sum(map(bytes_of, outputs)),
        fallback=fallback,
    )


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")
