"""Methods of a sharded parameter that torch ignores, or refuses without saying why.

parameter.copy_(values), .data = values     take the values of the whole: each rank keeps its part
parameter.normal_(), .uniform_()            draw the whole: torch draws the same part on each rank (on CPUs)
parameter.register_hook(hook)               gets the gradient of the whole, of this rank's batch
loss + parameter.norm()                     a number of the whole
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.library_hooks import PARAMETERS

_ARITHMETIC = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__")
# Typed `Any`: torch's has no types.
_register: Any = torch.Tensor.register_hook
_hooks: Any = WeakIdKeyDictionary()


def serve() -> None:
    """Replace the methods of torch's `DTensor`; a second call changes nothing."""
    from torch.distributed.tensor import DTensor

    if "copy_" in vars(DTensor):
        return
    require(PARAMETERS)
    copy, data = torch.Tensor.copy_, vars(torch._C.TensorBase)["data"]

    def copy_(tensor: Any, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return copy(tensor, part_of(values, tensor), *args, **kwargs)

    def set_data(tensor: Any, values: torch.Tensor) -> None:
        # The parts themselves are in a member of Python's, which torch's setter leaves as it is.
        if (tensor.shape, tensor.dtype) != (values.shape, values.dtype):
            raise ParallelError(
                f"parameter.data = values: the values are {values.dtype} {list(values.shape)}, and the parameter that"
                f" the ranks share is {tensor.dtype} {list(tensor.shape)}. Change the model before shard"
            )
        with torch.no_grad():
            tensor.copy_(values)

    def register_hook(tensor: Any, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
        served = _hooks.get(tensor)
        return _register(tensor, hook) if served is None else served.add(hook)

    methods = {"copy_": copy_, "register_hook": register_hook, "data": property(data.__get__, set_data)}
    for name, method in methods.items():
        setattr(DTensor, name, method)
    for name in _ARITHMETIC:
        setattr(DTensor, name, _arithmetic(getattr(torch.Tensor, name)))
    for name in ("normal_", "uniform_"):
        setattr(DTensor, name, _drawing(getattr(torch.Tensor, name)))


def _drawing(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def draw(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            whole = method(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), *args, **kwargs)
            # Scripts seed the ranks differently, and copies of a part are equal.
            dist.broadcast(whole, 0)
            tensor.copy_(whole)
        return tensor

    return draw


def _arithmetic(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator with a plain tensor, such as a loss plus a norm of parameters."""

    @wraps(method)
    def operate(tensor: Any, other: Any) -> Any:
        # As one number of all ranks: torch would make the sum a `DTensor`, and fail in the backward of the plain part.
        plain = type(other) in (torch.Tensor, nn.Parameter)
        return method(tensor.full_tensor() if plain and tensor.ndim == 0 else tensor, other)

    return operate


def take_whole_states(model: nn.Module) -> None:
    """Have `load_state_dict(whole, assign=True)` give the model its parts; without `assign` it calls `copy_`."""

    def keep_parts(module: nn.Module, states: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
        if metadata.get("assign_to_params_buffers"):
            shared = {prefix + name: parameter for name, parameter in module.named_parameters()}
            states.update({name: part_of(states[name], shared[name]) for name in states.keys() & shared.keys()})

    model.register_load_state_dict_pre_hook(keep_parts)  # type: ignore[no-untyped-call]


def part_of(values: Any, like: Any) -> Any:
    """Return this rank's part of whole values, distributed like a `DTensor`; other values as they are."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if isinstance(values, DTensor) or not isinstance(like, DTensor) or values.shape != like.shape:
        return values
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    part = values[tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))]
    return DTensor.from_local(
        part.to(like.device), like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )


class GradientHooks:
    """The hooks of one sharded parameter.

    They run on the parameter that `fully_shard` gathers, whose gradient has not been averaged over the ranks yet, as
    under DistributedDataParallel.
    """

    def __init__(self, unit: nn.Module, module: nn.Module, name: str, before: Any) -> None:
        self._unit, self._module, self._name = unit, module, name
        # Those of the parameter `before` shard. The same objects, so that their handles still remove them.
        self._hooks = OrderedDict() if before._backward_hooks is None else before._backward_hooks
        self._gathered: torch.Tensor | None = None
        self._watching = False
        sharded: Any = module._parameters[name]
        _hooks[sharded] = self
        sharded._post_accumulate_grad_hooks = before._post_accumulate_grad_hooks
        if self._hooks:
            self._watch()

    def add(self, hook: Callable[[torch.Tensor], torch.Tensor | None]) -> RemovableHandle:
        """Add a hook; return the handle that removes it."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        self._watch()
        return handle

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            # Behind torch's own hook, which gathers the parameters.
            self._unit.register_forward_pre_hook(self._attach)
            sharded: Any = self._module._parameters[self._name]
            if sharded.requires_grad:
                _register(sharded, self._run_on_part)

    def _attach(self, *_: Any) -> None:
        gathered = self._module._parameters[self._name]
        if gathered is not None and gathered is not self._gathered and gathered.requires_grad:
            self._gathered = gathered
            _register(gathered, self._run)

    def _run_on_part(self, gradient: Any) -> Any:
        # Of a term of the loss that was computed outside of the model.
        return part_of(self._run(gradient.full_tensor()), gradient)

    def _run(self, gradient: torch.Tensor) -> torch.Tensor:
        for hook in tuple(self._hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed.to(gradient.dtype)
        return gradient


def is_shared(tensor: Any) -> bool:
    """Say whether this is a parameter that the ranks share by `shard`."""
    return tensor in _hooks


def own_parameters(unit: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return the parameters that `fully_shard(unit)` would split: with their modules and names there."""
    return [
        (module, name, parameter)
        for module in unit.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter not in _hooks
    ]
