"""Run operations without computing them: results have the right shapes, and memory that nothing ever touches.

    result = Skipper().run(torch.ops.aten.mm.default, (a, b), {})

The system backs allocated memory with pages only when something writes to it, so tensors of any size cost nothing.
Ordinary tensors, unlike torch's fake ones, pass through C++ code, `numpy()` and assignments to `.data`.

    [1] a view, a change of a shape, a sparse tensor     runs: it touches no values, or few
    [2] few elements, or all inputs have true values    runs: batches, masks, indices, and a loss that a script tests
    [3] all else                                        the shapes come from torch's kernels for the meta device
    [4] no such kernel, or the shapes need values       runs on the memory as it is; `fallbacks` names the operation
    [5] an operation that is not torch's own            the first call of each kind runs as in [4]; it tells the shapes
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from herringbone_parallel.torch.measure.operations import tensors_of
from herringbone_parallel.torch.operation_work import is_view

# Elements of inputs and outputs together up to which an operation runs.
_FEW = 1 << 14
# The same for operations whose inputs all have true values, such as a batch that a loader has read.
_KNOWN = 1 << 22
# Bytes of tensors without values up to which [4] runs on the whole of them.
_WHOLE = 1 << 28


@dataclass(frozen=True)
class Shape:
    """A tensor of a result: what `torch.empty_strided` needs to make it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def make(self) -> torch.Tensor:
        """Return a tensor of this shape, without values."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)


@dataclass(frozen=True)
class _Traits:
    """The parts of an operation's schema that matter here; `writes` are the names and positions of changed arguments.

    `results` has, for each result, the argument that is returned, None for a new one.
    """

    runs: bool
    writes: tuple[tuple[int, str], ...]
    results: tuple[tuple[int, str] | None, ...]


_NO_SHAPE, _SPARSE = object(), object()


class _Sparse(Exception):
    """A result that is no strided tensor, which a `Shape` cannot describe."""


class Skipper:
    """Runs operations for one measurement."""

    def __init__(self) -> None:
        # The results' shapes by the operation's key.
        self._shapes: dict[Hashable, Any] = {}
        # Storages whose contents are no true values, by address. An entry ends with its storage, whose address is then
        # used again.
        self._unknown: dict[int, Any] = {}
        # The value of all elements of truth values that come from such contents.
        self._truth: dict[int, bool] = {}
        self.fallbacks: dict[str, int] = {}

    def forget(self, tensor: torch.Tensor) -> None:
        """Treat the tensor's values as unknown, such as those of a parameter."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        address, unknown = storage._cdata, self._unknown
        if address not in unknown:
            truth = self._truth

            def freed(_: Any) -> None:
                unknown.pop(address, None)
                truth.pop(address, None)

            unknown[address] = weakref.ref(storage, freed)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Say whether the tensor has the values that the script would see in a job."""
        return tensor.layout is not torch.strided or tensor.untyped_storage()._cdata not in self._unknown

    def run(self, func: Any, args: Any, kwargs: Any, key: Hashable | None) -> tuple[Any, bool]:
        """Return the operation's result, and whether it ran for want of a kernel for shapes: [4]."""
        traits = _traits(func)
        inputs = tensors_of((args, kwargs))
        if (traits.runs and (traits.writes or func.namespace in _TORCHS)) or any(
            not _is_plain(tensor) for tensor in inputs
        ):
            return self._run(func, args, kwargs, inputs), False
        known = all(map(self.knows, inputs))
        if not known and not traits.writes and func.namespace not in _TORCHS:
            return self._once(func, args, kwargs, key)
        fresh = not traits.results or any(one is None for one in traits.results)
        shapes = self._shapes_of(func, args, kwargs, key) if fresh and traits.results else None
        if shapes is _SPARSE:
            return self._run(func, args, kwargs, inputs), False
        if shapes is _NO_SHAPE:
            return self._fall_back(func, args, kwargs, known)
        elements = sum(tensor.numel() for tensor in inputs) + _elements(shapes)
        if elements <= _FEW or (known and elements <= _KNOWN and func.overloadpacket not in flop_registry):
            # [2]
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, IndexError, ValueError):
                # An index without a true value may be out of range.
                if known:
                    raise
            else:
                if not known:
                    self._forget_results(func, args, kwargs, result)
                return result, False
        # [3]
        result = self._made(traits, shapes, args, kwargs)
        truths = [tensor for tensor in tensors_of(result) if tensor.dtype is torch.bool]
        if truths:
            self._decide(func, args, kwargs, truths)
        self._forget_written(func, args, kwargs)
        return result, False

    def _run(self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> Any:
        """Return the operation's own result [1]; a product of a sparse matrix and unknown values is unknown."""
        result = func(*args, **kwargs)
        if any(tensor.layout is not torch.strided for tensor in inputs) and not all(map(self.knows, inputs)):
            for tensor in tensors_of(result):
                self.forget(tensor)
        return result

    def _decide(self, func: Any, args: Any, kwargs: Any, truths: list[torch.Tensor]) -> None:
        """Give truth values that a loop or a check may read: those of numbers that are 1, neither NaN nor large."""
        try:
            outcome = func(*replaced_leaves(args, self._one), **replaced_leaves(kwargs, self._one))
            truth = bool(tensors_of(outcome)[0].all())
        except Exception:  # noqa: BLE001  an operation that does not take single elements
            truth = False
        for tensor in truths:
            self._set_truth(tensor, truth=truth)

    def _set_truth(self, tensor: torch.Tensor, *, truth: bool) -> None:
        self._truth[tensor.untyped_storage()._cdata] = truth
        if tensor.numel() <= _KNOWN:
            tensor.fill_(truth)

    def _is_true(self, value: Any) -> bool:
        """Say whether truth values are true, as far as known: one of them, or all that come from unknown contents."""
        if not isinstance(value, torch.Tensor):
            return value is True
        if self.knows(value):
            return bool(value.any())
        return self._truth.get(value.untyped_storage()._cdata, False)

    def _one(self, leaf: Any) -> Any:
        """Return a tensor of one element for a tensor."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        truth = self._truth.get(leaf.untyped_storage()._cdata, True)
        return torch.full((1,) * leaf.dim(), truth, dtype=leaf.dtype)

    def _shapes_of(self, func: Any, args: Any, kwargs: Any, key: Hashable | None) -> Any:
        if key is not None and key in self._shapes:
            return self._shapes[key]
        try:
            if func.overloadpacket.__name__ in _UNKNOWN_TO_META:
                shapes = replaced_leaves(func(*args, **kwargs), shape_of)
            else:
                shapes = replaced_leaves(func(*_to_meta(args), **_meta_options(func, _to_meta(kwargs))), shape_of)
        except _Sparse:
            shapes = _SPARSE
        except Exception:  # noqa: BLE001  the operation itself, run in [4], says what is wrong
            shapes = _NO_SHAPE
        if key is not None:
            self._shapes[key] = shapes
        return shapes

    def _made(self, traits: _Traits, shapes: Any, args: Any, kwargs: Any) -> Any:
        """Return the result from its shapes; arguments that the operation changes are returned themselves."""
        results = []
        several = len(traits.results) > 1
        for number, changed in enumerate(traits.results):
            if changed is not None:
                results.append(_argument(changed, args, kwargs))
                continue
            results.append(replaced_leaves(shapes[number] if several else shapes, self._make))
        return tuple(results) if several else (results[0] if results else None)

    def _make(self, shape: Any) -> Any:
        if not isinstance(shape, Shape):
            return shape
        tensor = shape.make()
        self.forget(tensor)
        if tensor.numel() <= _FEW:
            # Values that the script may test: finite and positive. Many must differ: nms drops equal boxes.
            if tensor.is_floating_point() and tensor.numel() > 1:
                tensor.uniform_(0.1, 1)
            else:
                tensor.fill_(1)
        return tensor

    def _fall_back(self, func: Any, args: Any, kwargs: Any, known: bool) -> tuple[Any, bool]:
        writes = bool(_traits(func).writes)
        if not known and not writes:
            args, kwargs = replaced_leaves(args, self._plausible), replaced_leaves(kwargs, self._plausible)
        result = func(*args, **kwargs)
        if known:
            return result, False
        name = str(func)
        self.fallbacks[name] = self.fallbacks.get(name, 0) + 1
        for tensor in tensors_of(result):
            self.forget(tensor)
        return result, True

    def _once(self, func: Any, args: Any, kwargs: Any, key: Hashable | None) -> tuple[Any, bool]:
        """Return the result of an operation whose shapes nobody but itself tells [5]."""
        shapes = None if key is None else self._shapes.get(key)
        if shapes is not None:
            return self._made(_traits(func), shapes, args, kwargs), True
        result = self._fall_back(func, args, kwargs, known=False)[0]
        if key is not None and all(map(_is_plain, tensors_of(result))):
            self._shapes[key] = replaced_leaves(result, shape_of)
        return result, True

    def _plausible(self, value: Any) -> Any:
        """Return a large tensor with some values instead of none: numbers in [0, 1), and equal truth values."""
        if not isinstance(value, torch.Tensor) or self.knows(value):
            return value
        if value.numel() <= _FEW or value.numel() * value.element_size() > _WHOLE:
            return value
        if value.is_floating_point():
            return torch.rand_like(value)
        return torch.full_like(value, self._truth.get(value.untyped_storage()._cdata, True))

    def _forget_results(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        for tensor in tensors_of(result):
            self.forget(tensor)
        self._forget_written(func, args, kwargs)

    def _forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        for position in _traits(func).writes:
            for tensor in tensors_of(_argument(position, args, kwargs)):
                self.forget(tensor)
                if tensor.dtype is torch.bool and self._is_true(_written(func, args, kwargs)):
                    # Which elements of a mask have become true is not known, only that some have.
                    self._set_truth(tensor, truth=True)

    def scalar(self, tensor: torch.Tensor) -> Any:
        """Return the number of a tensor of one element; 1 for one without a true, finite value."""
        value = tensor.detach().reshape(()).tolist()
        if isinstance(value, float) and not math.isfinite(value) and not self.knows(tensor):
            return 1.0
        return value


@functools.cache
def _traits(func: Any) -> _Traits:
    schema = func._schema
    writes, names = [], {}
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            position = (index if not argument.kwarg_only else -1, argument.name)
            writes.append(position)
            for name in argument.alias_info.before_set:
                names[name] = position
    results = tuple(
        next((names[name] for name in one.alias_info.before_set if name in names), None) if one.alias_info else None
        for one in schema.returns
    )
    reshapes = torch.Tag.inplace_view in func.tags or func.overloadpacket.__name__ in ("resize_", "resize_as_", "set_")
    return _Traits(is_view(func) or reshapes or func.namespace not in _SKIPPED, tuple(writes), results)


# Operations that allocate more than their kernels for the meta device say, here a workspace. They run once per shape.
_UNKNOWN_TO_META = {"mkldnn_rnn_layer"}
# Operations of other namespaces, such as collectives and profiler marks, run.
_SKIPPED = {"aten", "torchvision", "prims"}
# The namespaces of torch itself. What another one computes, such as a user's kernel, torch does not know.
_TORCHS = {
    *_SKIPPED,
    *("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "profiler", "streams", "_dtensor", "inductor"),
    *("mkldnn", "mkl", "onednn", "quantized", "prim", "rngprims", "symm_mem", "_quantized", "sparse", "image"),
}


def _argument(position: tuple[int, str], args: Any, kwargs: Any) -> Any:
    index, name = position
    return kwargs.get(name) if index < 0 or index >= len(args) else args[index]


@functools.cache
def _value_of(func: Any) -> tuple[int, str] | None:
    """Return the position and the name of the argument that an operation writes into some elements of another one."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in ("value", "values", "src", "source"):
            return index, argument.name
    return None


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    position = _value_of(func)
    return None if position is None else _argument(position, args, kwargs)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def shape_of(value: Any) -> Any:
    """Return the shape of a tensor, and anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided:
        raise _Sparse
    return Shape(tuple(value.size()), value.stride(), value.dtype)


def _elements(shapes: Any) -> int:
    if isinstance(shapes, Shape):
        return math.prod(shapes.size)
    return sum(map(_elements, shapes)) if isinstance(shapes, (list, tuple)) else 0


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(item) for item in value]
    if isinstance(value, dict):
        return {name: _to_meta(item) for name, item in value.items()}
    return value


@functools.cache
def _has_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _meta_options(func: Any, kwargs: Any) -> Any:
    if _has_device(func):
        kwargs = {**kwargs, "device": torch.device("meta")}
        kwargs.pop("pin_memory", None)
    return kwargs


def replaced_leaves(value: Any, change: Any) -> Any:
    """Return arguments or results of an operation with each leaf changed."""
    if isinstance(value, (list, tuple)):
        return type(value)(replaced_leaves(item, change) for item in value) if not hasattr(value, "_fields") else value
    if isinstance(value, dict):
        return {name: replaced_leaves(item, change) for name, item in value.items()}
    return change(value)
