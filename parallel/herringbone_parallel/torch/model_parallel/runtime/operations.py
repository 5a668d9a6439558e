"""Operations of user code on placed tensors: which of them are served, and on which rank they run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn, Protocol

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.model_parallel.runtime import gradients, memory
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor, Value
from herringbone_parallel.torch.model_parallel.runtime.regions import LOST

# These return plain Python values, so every rank needs the data itself.
NEEDS_DATA = {
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__bool__, torch.Tensor.__int__,
    torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__format__, torch.Tensor.__contains__,
    torch.Tensor.__array__, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    torch.is_nonzero, torch.Tensor.is_nonzero,
}  # fmt: skip

_NO_MEMORY = "its memory is on one rank only; read it in a module, or with .numpy() on every rank"
NEEDS_MEMORY = ("untyped_storage", "storage", "data_ptr", "__dlpack__", "__reduce_ex__", "share_memory_")
# Typed `Any`, because torch's stubs do not declare that these attributes have `__get__` and `__set__`.
_attribute: Any = torch.Tensor
SET_DATA = _attribute.data.__set__
_REFUSED = {
    torch.Tensor.backward: "call model.backward(loss) instead, so that the schedule can place it",
    torch.autograd.backward: "call model.backward(loss) instead, so that the schedule can place it",
    torch.Tensor.requires_grad_: "decide it on the inputs of the model",
    torch.Tensor.register_hook: "register a hook on the module, or on the parameter outside of the step",
    torch.Tensor.register_post_accumulate_grad_hook: "register it on the parameter outside of the step",
    _attribute.grad.__set__: "each step has new tensors, so there is no gradient to reset",
    SET_DATA: "give the new tensor a name of its own",
    **{getattr(torch.Tensor, name): _NO_MEMORY for name in NEEDS_MEMORY},
}

# Calls of every rank that change how a parameter is used, and not its data.
_OF_PARAMETERS = {torch.Tensor.requires_grad_, _attribute.requires_grad.__set__}
_SAME_DATA = {_attribute.data.__get__, torch.Tensor.detach, torch.detach}

# In-place methods whose names do not end with one underscore.
_AUGMENTED = {
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__", "__iand__",
    "__ior__", "__ixor__",
}  # fmt: skip


# These update running statistics, if this argument is true, in a way that tensors do not count as a write.
_UPDATING = {torch.nn.functional.batch_norm: "training", torch.nn.functional.instance_norm: "use_input_stats"}


class Caller(gradients.Caller, Protocol):
    """The part of `Microbatch` that runs operations."""

    def fetch(self, tensor: PlacedTensor) -> torch.Tensor: ...
    def place_parameter(self, leaf: Any) -> Any: ...
    def note_write(self, value: Value, *, replaced: bool) -> None: ...


def operate(caller: Caller, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of the user's code that has placed tensors among its arguments."""
    name = name_of(func)
    first = caller.place_parameter(args[0]) if args else None
    if isinstance(first, PlacedTensor) and first.value.parameter is not None:
        if func in _OF_PARAMETERS:
            return _on_every_rank(caller, func, first, args, kwargs)
        if func in _SAME_DATA and not first.value.spec.requires_grad:
            # Another name of the same value: a write through one of them is seen through both.
            return PlacedTensor.wrap(first.value, first.device, first.operate)
        if func == SET_DATA:
            if first.value.spec.requires_grad:
                memory.refuse_parameter(first.value, "parameter.data = ...")
            return _write_parameter(caller, func, name, first, args, kwargs)
    if func in NEEDS_DATA:
        return func(*_with_data(caller, args), **_with_data(caller, kwargs))
    if func is torch.Tensor.__iter__:
        # A generator has no shape to share; the parts that `unbind` returns have.
        return iter(operate(caller, torch.Tensor.unbind, (args[0], 0), {}))
    if func == torch.Tensor.retain_grad:
        return gradients.retain(caller, args[0])
    if func == _attribute.grad.__get__:
        return gradients.gradient(caller, args[0])
    if func is torch.autograd.grad:
        return gradients.differentiate(caller, args, kwargs)
    if func in _REFUSED:
        raise ParallelError(f"Tensor.{name} cannot be used on a tensor of a distributed model: {_REFUSED[func]}")
    if kwargs.get("out") is not None:
        raise ParallelError(f"{name}(..., out=) is not supported on tensors of a distributed model")
    if name.startswith("_foreach_") and writes(name, kwargs):
        for number, target in enumerate(args[0]):
            others = (other[number] if isinstance(other, (list, tuple)) else other for other in args[1:])
            getattr(target, name.removeprefix("_foreach_"))(*others, **kwargs)
        return None
    if writes(name, kwargs):
        return _operate_in_place(caller, func, name, args, kwargs)
    if func in _UPDATING and kwargs.get(_UPDATING[func]):
        statistics = args[1] if len(args) > 1 else kwargs.get("running_mean")
        if statistics is not None:
            _refuse_write(name)
    return caller.call(f"torch.{name}", None, partial(reading, f"torch.{name}", func), args, kwargs, identity=func)


def reading(name: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a call that may only read its arguments. Raises `ParallelError` if it has written into one of them.

    Other ranks would keep the old data, and the tape would not know of the write.
    """
    # An inference tensor of the script's own counts no writes.
    tensors = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor) and not leaf.is_inference()]
    # A detached tensor counts writes together with the tensor that it was detached from.
    versions = [tensor._version for tensor in tensors]
    result = func(*args, **kwargs)
    if versions != [tensor._version for tensor in tensors]:
        _refuse_write(name)
    return result


def operate_inside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on a placed tensor that a module kept and now uses in its own code.

    No other rank takes part there, so the data must be on this rank.
    """

    def local(leaf: Any) -> Any:
        if not isinstance(leaf, PlacedTensor):
            return leaf
        # Fetching it would need a call of every rank, and only this rank runs this code.
        value = leaf.value
        if value.local is None:
            raise ParallelError(
                f"torch.{name_of(func)}: a tensor of pipeline rank {value.owner} is used where only one rank runs."
                " Pass it to the module as an argument, so that it can be moved."
            )
        # No rank's tape knows of this use. A parameter is a leaf of every graph, and needs no tape.
        if value.flow is not None and torch.is_grad_enabled() and not isinstance(value.local, torch.nn.Parameter):
            raise ParallelError(
                f"torch.{name_of(func)}: a tensor of the step is used in a module's own code, where its gradient would"
                " be lost. Pass it to the module as an argument, or keep tensor.detach()."
            )
        return value.local

    return func(*replace_leaves(args, local), **replace_leaves(kwargs, local))


def _operate_in_place(caller: Caller, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `x.add_(y)` as `x = x.clone().add_(y)`: the name `x` then has the new value.

    Other names of the same memory, such as views of `x`, miss the write: the first use of one is refused (`memory`).
    """
    target = args[0] if args else None
    if isinstance(target, torch.nn.Parameter):
        # A parameter of code that runs on every rank.
        target = caller.place_parameter(target)
    if not isinstance(target, PlacedTensor):
        raise ParallelError(
            f"{name} would write a value of one rank into a tensor that every rank has its own copy of;"
            " use the operation that returns a new tensor"
        )

    old = target.value
    if old.parameter is not None and not old.spec.requires_grad:
        return _write_parameter(caller, func, name, target, args, kwargs)
    memory.refuse_parameter(old, name)
    source = args[2].value if name == "__setitem__" and isinstance(args[-1], PlacedTensor) else None
    assigned_back = source is not None and memory.catch_up(old, args[1], source)
    # Without gradients a write changes the data, and leaves the graph of the target as it is.
    through = target.requires_grad and not torch.is_grad_enabled()

    def on_copy(first: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        # A copy, because other ranks may hold the old data, and the tape knows the old value.
        if not through:
            copy = first.clone()
            func(copy, *rest, **named)
            return copy
        with torch.no_grad():
            copy = first.clone()
            func(copy, *rest, **named)
        return _NewData.apply(first, copy)  # type: ignore[no-any-return, no-untyped-call]

    with torch.enable_grad() if through else nullcontext():
        changed = caller.call(f"torch.{name}", None, on_copy, (target, *args[1:]), kwargs, identity=func)
    if (changed.shape, changed.dtype) != (target.shape, target.dtype):
        raise ParallelError(
            f"{name} changes the shape of a tensor of a distributed model from {list(target.shape)} to"
            f" {list(changed.shape)}: give the result of the operation that returns a new tensor a name of its own"
        )
    memory.note_write(old, changed.value.serial, name)
    if source is not None and assigned_back:
        # In one process the view that was assigned back still shares the target's memory.
        source.missed = LOST
    # The same Python object, because the user's other names for it must see the new value, too.
    target.value = changed.value
    with torch._C.DisableTorchFunctionSubclass():
        target.requires_grad_(changed.requires_grad)
    return target


def _write_parameter(
    caller: Caller, func: Any, name: str, target: PlacedTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PlacedTensor:
    """Write into a parameter that takes no gradients, on its owner: modules see the write, and later microbatches."""
    old, others = target.value, leaves_of((args[1:], kwargs))
    if torch.is_grad_enabled() and any(torch.is_tensor(other) and other.requires_grad for other in others):
        raise ParallelError(
            f"{name} of a tensor with gradients into a parameter that takes none: call it under torch.no_grad()"
        )
    assigns, parameter = func == SET_DATA, old.parameter
    if assigns and isinstance(args[1], PlacedTensor):
        memory.refuse_alias(args[1].value)

    def on_owner(first: torch.Tensor, *rest: Any, **named: Any) -> None:
        # The other ranks count on its shape.
        shape, dtype = first.shape, first.dtype
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if assigns:
                # Other names of the old data keep it.
                old.local = old.made = first.detach()
            func(first, *rest, **named)
            same = (first.shape, first.dtype) == (shape, dtype)
        if not same:
            raise ParallelError(f"{name} changes the shape or type of a parameter of a distributed model in a step")

    caller.call(f"torch.{name}", old.owner, on_owner, (target, *args[1:]), kwargs, identity=func)
    caller.note_write(old, replaced=assigns)
    if assigns:
        target.value = caller.place_parameter(parameter).value
        memory.link(args[1:], [target.value])
    return target


def _on_every_rank(
    caller: Caller, func: Any, placed: PlacedTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make a call on the parameter itself, which other ranks have without data."""
    parameter: Any = placed.value.parameter
    with torch._C.DisableTorchFunctionSubclass():
        result = func(parameter, *args[1:], **kwargs)
        placed.requires_grad_(parameter.requires_grad)
    placed.value = caller.place_parameter(parameter).value
    return placed if result is parameter else result


class _NewData(torch.autograd.Function):
    """Return a tensor with the graph of `_first` and the data of `copy`."""

    @staticmethod
    def forward(_: Any, _first: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        return copy.view_as(copy)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _refuse_write(name: str) -> NoReturn:
    raise ParallelError(
        f"{name} writes into an argument, and the other ranks of the pipeline do not see the change: use an operation"
        " that returns a new tensor, or make the call inside a module that is placed on one rank"
    )


def name_of(func: Any) -> str:
    """Return the name of a function of torch; for the methods of an attribute, the attribute's name."""
    name: str = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name in ("__get__", "__set__") else name


def writes(name: str, kwargs: dict[str, Any]) -> bool:
    """Say whether a call of this name writes into its first argument."""
    # The name of an overload, as of `torch.ops.aten.add_.Tensor`, has the overload's own name behind a dot.
    name = name.partition(".")[0]
    return name in _AUGMENTED or kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))


def _with_data(caller: Caller, structure: Any) -> Any:
    return replace_leaves(structure, lambda leaf: caller.fetch(leaf) if isinstance(leaf, PlacedTensor) else leaf)
