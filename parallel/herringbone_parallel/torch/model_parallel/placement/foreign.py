"""Parameters of code that runs on every rank, and parameters of other ranks, which have no data here.

Between steps every rank runs the same loop over all parameters. On the rank that has a parameter the loop changes it.
On the others the same calls run on the `meta` device: they have shapes, draw the same random numbers, and change
nothing. A call that needs the values of such a parameter for something else is refused by name.

    parameter.clamp_(-1, 1)                 does nothing here
    average.lerp_(parameter, 0.1)           nothing if `average` is a copy of it, and so has no data either
    parameter.norm().item()                 refused
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.runtime.microbatch import (
    OWNER_ATTRIBUTE,
    PATH_ATTRIBUTE,
    current,
    in_step,
)
from herringbone_parallel.torch.model_parallel.runtime.operations import (
    NEEDS_DATA,
    NEEDS_MEMORY,
    SET_DATA,
    name_of,
    writes,
)
from herringbone_parallel.torch.model_parallel.runtime.placed import METADATA, PlacedTensor

# The attribute of a foreign parameter that says whether code that runs on every rank uses it.
EVERYWHERE_ATTRIBUTE = "_smp_everywhere"
# Calls that need no values: loops over all parameters make them on every rank.
_attribute: Any = torch.Tensor
_WITHOUT_VALUES = {
    *METADATA,
    torch.Tensor.requires_grad_, torch.Tensor.stride, torch.Tensor.is_contiguous, torch.Tensor.__repr__,
    torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook,
    *(getattr(_attribute, name).__get__ for name in ("grad", "nbytes", "retains_grad")),
    *(getattr(_attribute, name).__set__ for name in ("grad", "requires_grad")),
}  # fmt: skip
_GRADIENT = {_attribute.grad.__get__, _attribute.grad.__set__}
_IS_META = _attribute.is_meta.__get__
# torch's initialisers draw nothing for a tensor on `meta`, and `load_state_dict` warns of one.
_OF_META = {nn.init.__name__, nn.Module.__module__}
# Typed `Any`: the name is private.
_initialisers: Any = nn.init
_truncated_normal = _initialisers._no_grad_trunc_normal_


class OwnedParameter(nn.Parameter):
    """A parameter of a module whose code runs on every rank; operations on it run on the rank where it lives."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        microbatch = current()
        if microbatch is None or func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return microbatch.operate(func, args, kwargs or {})


class ForeignTensor(torch.Tensor):
    """A tensor that was computed from a parameter of another rank, and has no data here."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = leaves_of((args, kwargs))
        foreign = next(leaf for leaf in leaves if isinstance(leaf, (ForeignTensor, ForeignParameter)))
        microbatch = current()
        if func in _GRADIENT and microbatch is not None:
            raise ParallelError(
                f"the gradient of parameter {getattr(foreign, PATH_ATTRIBUTE)!r} inside a step, where other"
                " microbatches add to it: read it after the step, and call zero_grad() before the step"
            )
        if func in _WITHOUT_VALUES:
            if func == _IS_META and sys._getframe(1).f_globals.get("__name__") in _OF_META:
                return False
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if microbatch is not None:
            if any(_is_everywhere(leaf) for leaf in leaves):
                return microbatch.operate(func, args, kwargs)
            _refuse(foreign)
        if in_step():
            # The code of a module runs on one rank, so the owner would make no such call.
            _refuse(foreign)
        return _without_data(foreign, func, args, kwargs)


class ForeignParameter(nn.Parameter):
    """A parameter that lives on another rank, and has no data here."""

    # Left alone, `meta` tensors spread in silence: `average.add_(parameter)` adds nothing to a tensor with data.
    __torch_function__ = ForeignTensor.__torch_function__


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draw the random numbers of operations on `meta`, so that all ranks go on with the same generator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:

            def filled(leaf: Any) -> Any:
                is_ours = isinstance(leaf, torch.Tensor) and leaf.is_meta
                return torch.zeros_like(leaf, device=state.get().device) if is_ours else leaf

            drawn = replace_leaves(kwargs, filled)
            if torch.device(kwargs.get("device") or "cpu").type == "meta":
                drawn["device"] = state.get().device
            func(*replace_leaves(args, filled), **drawn)
            # On `meta` no generator is accepted.
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        return func(*args, **kwargs)


def serve_initialisers() -> None:
    """Let torch's truncated normal distribution draw for parameters of other ranks; a second call changes nothing."""
    _initialisers._no_grad_trunc_normal_ = _drawn_truncated


@functools.wraps(_truncated_normal)
def _drawn_truncated(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if not isinstance(tensor, (ForeignTensor, ForeignParameter)):
        return _truncated_normal(tensor, *args, **kwargs)  # type: ignore[no-any-return]
    # It draws as often as values are out of bounds, so it needs values.
    with torch._C.DisableTorchFunctionSubclass():
        _truncated_normal(torch.empty_like(tensor, device=state.get().device), *args, **kwargs)
    return tensor


def _without_data(foreign: Any, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a call on `meta`. Raises `ParallelError` if it needs the data."""
    if func in NEEDS_DATA or name_of(func) in NEEDS_MEMORY or _fills(func, args, kwargs):
        _refuse(foreign)
    if func == SET_DATA:
        if (args[0].shape, args[0].dtype) != (args[1].shape, args[1].dtype):
            _refuse(foreign)
        return None
    if func is torch.Tensor.__deepcopy__:
        func, args = torch.Tensor.clone, args[:1]

    def on_meta(leaf: Any) -> Any:
        return leaf.to("meta") if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf

    def marked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, (ForeignTensor, ForeignParameter)):
            return leaf
        if leaf.is_meta:
            leaf = leaf.as_subclass(ForeignTensor)
            for name in (PATH_ATTRIBUTE, OWNER_ATTRIBUTE):
                setattr(leaf, name, getattr(foreign, name))
        return leaf

    with torch._C.DisableTorchFunctionSubclass(), _Drawing():  # type: ignore[no-untyped-call]
        if not name_of(func).startswith("_foreach"):
            # A list of all parameters has some with data, each next to its own partner.
            args, kwargs = replace_leaves((args, kwargs), on_meta)
        try:
            return replace_leaves(func(*args, **kwargs), marked)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" not in str(error):
                raise
            if writes(name_of(func), kwargs):
                # Elements that a mask selects: nothing is written here, whichever they are.
                return args[0]
            _refuse(foreign, error)


def _fills(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Say whether a call would write values that are not here into a tensor that is."""
    if kwargs.get("out") is None and not writes(name_of(func), kwargs) and func != SET_DATA:
        return False
    # torch.nn.init passes its tensor by name.
    target, *others = [*args, *kwargs.values()] if kwargs.get("out") is None else [kwargs["out"], *args]
    if not isinstance(target, (list, tuple)):
        return not target.is_meta
    # The functions of lists, such as torch._foreach_add_, pair their elements.
    lists = [other for other in others if isinstance(other, (list, tuple)) and len(other) == len(target)]
    single = any(isinstance(other, torch.Tensor) and other.is_meta for other in others)
    return any(
        not written.is_meta and (single or any(leaf.is_meta for leaf in partners if isinstance(leaf, torch.Tensor)))
        for written, *partners in zip(target, *lists, strict=True)
    )


def _is_everywhere(leaf: Any) -> bool:
    """Say whether every rank runs an operation on this value, and not the owner of a module alone."""
    return isinstance(leaf, (PlacedTensor, OwnedParameter)) or hasattr(leaf, EVERYWHERE_ATTRIBUTE)


def _refuse(foreign: Any, cause: Exception | None = None) -> NoReturn:
    raise ParallelError(
        f"the values of parameter {getattr(foreign, PATH_ATTRIBUTE)!r} are on pipeline rank"
        f" {getattr(foreign, OWNER_ATTRIBUTE)}, and not on this one. Outside of steps, loop over"
        " model.local_named_parameters(), or gather all values with model.state_dict(). In a step, take the parameter"
        " from named_parameters() of the model or of a module, in code that runs on every rank: in the step function,"
        " or in the forward of a module whose parameters are on several ranks"
    ) from cause
