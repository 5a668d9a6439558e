"""Stand-ins for the wrappers that train a model on several ranks: they call the model, and neither split nor sum.

    DistributedDataParallel, FullyShardedDataParallel, fully_shard

The prediction adds their buckets and their gathered parameters later, for each layout. Their 16-bit parameters are
computed here, because they change what every operation works on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.core.structure import replace_leaves
from herringbone_parallel.torch.measure.replacing import nothing, replaced
from herringbone_parallel.torch.measure.result import Facts


@contextmanager
def unsplit(facts: Facts) -> Iterator[None]:
    """Serve the wrappers in the `with` block; `facts` learns which of them the script uses."""
    import torch.distributed.fsdp as fsdp
    from torch.distributed.fsdp import _fully_shard

    # With torch's own parameters: the libraries that a script loads check them.
    @functools.wraps(DistributedDataParallel.__init__)
    def create(self: DistributedDataParallel, module: nn.Module, *_args: Any, **options: Any) -> None:
        _create_ddp(self, module, options)
        facts.wrapper = facts.wrapper or "DistributedDataParallel"

    served = fully_shard_of(facts)
    wrapper = wrapper_of(facts)
    with ExitStack() as stack:
        stack.enter_context(
            replaced(
                DistributedDataParallel, __init__=create, forward=_forward, no_sync=_no_sync, join=_join,
                register_comm_hook=nothing, _set_static_graph=nothing, __getstate__=dict,
            )
        )  # fmt: skip
        names = {"fully_shard": served, "FSDPModule": Sharded, "FullyShardedDataParallel": wrapper}
        for module in (fsdp, _fully_shard, fsdp.fully_sharded_data_parallel):
            stack.enter_context(replaced(module, **{name: names[name] for name in names if hasattr(module, name)}))
        # Scripts treat these parameters as parts that can be made whole.
        stack.enter_context(replaced(torch.Tensor, full_tensor=_itself, to_local=_itself))
        yield


def _create_ddp(self: DistributedDataParallel, module: nn.Module, options: dict[str, Any]) -> None:
    nn.Module.__init__(self)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient."
        )
    self.module = module
    self.device_ids, self.output_device, self.dim = None, None, 0
    vars(self)["process_group"] = options.get("process_group")
    self.find_unused_parameters = options.get("find_unused_parameters", False)
    self.gradient_as_bucket_view = options.get("gradient_as_bucket_view", False)
    self.static_graph = options.get("static_graph", False)
    self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    self.require_backward_grad_sync = self.require_forward_param_sync = True
    self.device = next(module.parameters()).device


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.module(*args, **kwargs)


@contextmanager
def _no_sync(self: Any) -> Iterator[None]:
    before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
    try:
        yield
    finally:
        self.require_backward_grad_sync = before


def _join(_self: Any, *_args: Any, **_kwargs: Any) -> Any:
    return contextlib.nullcontext()


def _itself(self: torch.Tensor) -> torch.Tensor:
    return self


class Sharded:
    """The methods that `fully_shard` adds to a module. They do nothing: each parameter is whole at all times."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_") or name in ("reshard", "unshard", "reset_iter_state"):
            return lambda *_args, **_kwargs: _Handle()
        return super().__getattr__(name)  # type: ignore[misc]


class _Handle:
    def wait(self) -> None:
        """Return at once."""


def fully_shard_of(facts: Facts) -> Any:
    """Return the stand-in for `fully_shard`, which notes the modules in `facts`."""

    from torch.distributed.fsdp import fully_shard as real

    # With torch's own parameters: `shard` of a library looks at their defaults.
    @functools.wraps(real)
    def fully_shard(module: Any, *, mp_policy: Any = None, **_options: Any) -> Any:
        facts.wrapper = "fully_shard"
        for unit in module if isinstance(module, (list, tuple)) else [module]:
            if not isinstance(unit, Sharded):
                kind = type(unit)
                unit.__class__ = type(kind.__name__, (Sharded, kind), {"__module__": kind.__module__})
            facts.units.add(id(unit))
            narrow(unit, mp_policy, facts.units)
        return module

    return fully_shard


def narrow(unit: nn.Module, policy: Any, units: set[int]) -> None:
    """Have the module compute with parameters of the policy's dtype; the parameters stay as they are."""
    dtype = getattr(policy, "param_dtype", None)
    if dtype is None:
        return
    inner = [module for module in _own(unit, units) if any(True for _ in module.parameters())]
    for module in inner:
        converted: list[tuple[nn.Module, str, nn.Parameter]] = []
        # Any of the modules may be the first one that runs: in a checkpointed region, a backward begins inside.
        module.register_forward_pre_hook(functools.partial(_convert, inner, dtype, converted))
        module.register_forward_hook(functools.partial(_restore, converted), always_call=True)
    if getattr(policy, "cast_forward_inputs", True):
        unit.register_forward_pre_hook(functools.partial(_cast_inputs, dtype), with_kwargs=True)
    output = getattr(policy, "output_dtype", None)
    if output is not None:
        unit.register_forward_hook(lambda _module, _args, result: _cast(result, output))


def _own(unit: nn.Module, units: set[int]) -> Iterator[nn.Module]:
    """Yield the module and those inside it that belong to no other unit."""
    yield unit
    for child in unit.children():
        if id(child) not in units:
            yield from _own(child, units)


def _convert(inner: Iterable[nn.Module], dtype: torch.dtype, converted: Any, *_: Any) -> None:
    for module in inner:
        for name, parameter in module._parameters.items():
            if isinstance(parameter, nn.Parameter) and parameter.is_floating_point() and parameter.dtype != dtype:
                converted.append((module, name, parameter))
                module._parameters[name] = parameter.to(dtype)  # type: ignore[assignment]


def _restore(converted: Any, *_: Any) -> None:
    while converted:
        module, name, parameter = converted.pop()
        module._parameters[name] = parameter


def _cast_inputs(dtype: torch.dtype, _module: nn.Module, args: Any, kwargs: Any) -> Any:
    return _cast(args, dtype), _cast(kwargs, dtype)


def _cast(structure: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return replace_leaves(structure, cast)


def wrapper_of(facts: Facts) -> type:
    """Return the stand-in for the class `FullyShardedDataParallel`."""

    class FullyShardedDataParallel(nn.Module):
        """Calls the module inside."""

        def __init__(
            self, module: nn.Module, *_args: Any, mixed_precision: Any = None, auto_wrap_policy: Any = None, **_: Any
        ) -> None:
            super().__init__()
            facts.wrapper = "fully_shard"
            facts.units |= {id(inner) for inner in _wrapped_by(module, auto_wrap_policy)}
            self._fsdp_wrapped_module = module
            if mixed_precision is not None:
                narrow(module, mixed_precision, set())

        @property
        def module(self) -> nn.Module:
            """The wrapped module."""
            return self._fsdp_wrapped_module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self._fsdp_wrapped_module, name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self._fsdp_wrapped_module(*args, **kwargs)

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
            """Clip as torch does."""
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

        def no_sync(self) -> Any:
            """Return a context that does nothing."""
            return contextlib.nullcontext()

        @staticmethod
        def state_dict_type(*_args: Any, **_kwargs: Any) -> Any:
            """Return a context that does nothing."""
            return contextlib.nullcontext()

        summon_full_params = state_dict_type
        set_state_dict_type = staticmethod(lambda *_args, **_kwargs: None)

        @staticmethod
        def optim_state_dict(_model: Any, optimizer: Any, *_args: Any, **_kwargs: Any) -> Any:
            """Return the optimizer's own state."""
            return optimizer.state_dict()

    return FullyShardedDataParallel


def _wrapped_by(module: nn.Module, policy: Any) -> Iterator[nn.Module]:
    classes = getattr(policy, "_module_classes", None)
    if classes is None and isinstance(policy, functools.partial):
        classes = policy.keywords.get("transformer_layer_cls")
    for inner in module.modules():
        if classes and isinstance(inner, tuple(classes)):
            yield inner
