"""Operations of user code on placed tensors: which of them are served, and on which rank they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import replace_leaves
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor

# These return plain Python values, so every rank needs the data itself.
_NEEDS_DATA = {
    torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__bool__, torch.Tensor.__int__,
    torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__format__, torch.Tensor.__contains__,
    torch.Tensor.__array__, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    torch.is_nonzero, torch.Tensor.is_nonzero,
}  # fmt: skip

_REFUSED = {
    torch.Tensor.backward: "call model.backward(loss) instead, so that the schedule can place it",
    torch.Tensor.requires_grad_: "decide it on the inputs of the model",
    torch.Tensor.register_hook: "register a hook on the module instead",
}

# In-place methods whose names do not end with one underscore.
_AUGMENTED = {
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__", "__iand__",
    "__ior__", "__ixor__",
}  # fmt: skip


class Caller(Protocol):
    """The part of `Microbatch` that runs operations."""

    def call(
        self,
        name: str,
        target: int | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        identity: Hashable = None,
    ) -> Any: ...
    def fetch(self, tensor: PlacedTensor) -> torch.Tensor: ...


def operate(caller: Caller, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of the user's code that has placed tensors among its arguments."""
    name = getattr(func, "__name__", str(func))
    if func in _NEEDS_DATA:
        return func(*_with_data(caller, args), **_with_data(caller, kwargs))
    if func is torch.Tensor.__iter__:
        # A generator has no shape to share; the parts that `unbind` returns have.
        return iter(operate(caller, torch.Tensor.unbind, (args[0], 0), {}))
    if func in _REFUSED:
        raise ParallelError(f"Tensor.{name} cannot be used on a tensor of a distributed model: {_REFUSED[func]}")
    if kwargs.get("out") is not None:
        raise ParallelError(f"{name}(..., out=) is not supported on tensors of a distributed model")
    if name in _AUGMENTED or (name.endswith("_") and not name.endswith("__")):
        return _operate_in_place(caller, func, name, args, kwargs)
    return caller.call(f"torch.{name}", None, func, args, kwargs, identity=func)


def operate_inside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on a placed tensor that a module kept and now uses in its own code.

    No other rank takes part there, so the data must be on this rank.
    """

    def local(leaf: Any) -> Any:
        if not isinstance(leaf, PlacedTensor):
            return leaf
        # Fetching it would need a call of every rank, and only this rank runs this code.
        if leaf.value.local is None:
            name = getattr(func, "__name__", str(func))
            raise ParallelError(
                f"torch.{name}: a tensor of pipeline rank {leaf.value.owner} is used where only one rank runs."
                " Pass it to the module as an argument, so that it can be moved."
            )
        return leaf.value.local

    return func(*replace_leaves(args, local), **replace_leaves(kwargs, local))


def _operate_in_place(caller: Caller, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `x.add_(y)` as `x = x.clone().add_(y)`: the name `x` then has the new value."""
    target = args[0]
    if not isinstance(target, PlacedTensor):
        raise ParallelError(
            f"{name} would write a value of one rank into a tensor that every rank has its own copy of;"
            " use the operation that returns a new tensor"
        )

    def on_copy(first: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        # A copy, because other ranks may hold the old data, and the tape knows the old value.
        copy = first.clone()
        func(copy, *rest, **named)
        return copy

    changed = caller.call(f"torch.{name}", None, on_copy, args, kwargs, identity=func)
    # The same Python object, because the user's other names for it must see the new value, too.
    target.value = changed.value
    return target


def _with_data(caller: Caller, structure: Any) -> Any:
    return replace_leaves(structure, lambda leaf: caller.fetch(leaf) if isinstance(leaf, PlacedTensor) else leaf)
