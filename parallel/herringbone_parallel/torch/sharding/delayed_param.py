"""Make and initialise parameters after a model has been split, so that no rank ever holds the whole model.

    with torch.device("meta"):
        model = Model()
    initer = DelayedParamIniter(model)
    with initer.validate_params_and_buffers_inited():
        model = FullyShardedDataParallel(model, param_init_fn=initer.get_param_init_fn())

`shard` does the same by itself. Source of the names: the developer guide, "Delayed parameter initialization".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding import state as states

Initializer = Callable[[nn.Module], object]
_log = logging.getLogger("torch.sagemaker")


class DelayedParamIniter:
    """Initialises the parameters of a model module by module, where they are on the meta device.

    A module's own way of initialisation counts: `init_method_using_config(module)` if it is given, else `_init_weights`
    of the Hugging Face model around the module, else the module's `reset_parameters`. Tied parameters stay tied. A
    parameter that tensor-parallel ranks share gets the values that it would have in one process, drawn from the job's
    `random_seed`; others take the script's random numbers, so seed all ranks alike.

    Buffers on the meta device are made and initialised alike. Raises `ParallelError` for a module that nothing
    initialises, by its name and class.
    """

    def __init__(
        self, model: nn.Module, init_method_using_config: Initializer | None = None, verbose: bool = False
    ) -> None:
        self._model = model
        self._custom = init_method_using_config
        self._verbose = verbose
        self._names = {module: name for name, module in model.named_modules()}
        self._initializers = dict(_initializers(model, None))
        # A tensor-parallel parameter may have become this rank's plain part when it is initialised.
        self._distributed = {
            (module, name): parameter
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if _is_distributed(parameter)
        }
        # Parameters on the meta device -> what was made of them, so that a tied one is made once.
        self._made: dict[nn.Parameter, nn.Parameter] = {}

    def get_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the `param_init_fn` of `FullyShardedDataParallel`: it initialises a module without its children."""
        return self._init

    def get_post_param_init_fn(self) -> Callable[[nn.Module], None]:
        """Return the `post_param_init_fn`. It does nothing, because tied parameters stay tied in any case."""
        return lambda _: None

    def count_num_params(self, module: nn.Module, *parameters: nn.Parameter) -> int:
        """Return the number of elements of these parameters, or else of the module's own."""
        return sum(parameter.numel() for parameter in parameters or module.parameters(recurse=False))

    @contextmanager
    def validate_params_and_buffers_inited(self, enabled: bool = True) -> Iterator[None]:
        """Raise `AssertionError` after the `with` block if a parameter or buffer is still on the meta device."""
        yield
        if not enabled:
            return
        tensors = (*self._model.named_parameters(), *self._model.named_buffers())
        left = [name for name, tensor in tensors if tensor.is_meta]
        if left:
            raise AssertionError(f"not initialised, and still on the meta device: {', '.join(left[:10])}")

    def make(self, module: nn.Module) -> None:
        """Initialise a module with its children, on all ranks alike: from the job's `random_seed`."""
        for submodule in module.modules():
            self._init(submodule, seeded=True)

    def _init(self, module: nn.Module, *, seeded: bool = False) -> None:
        on_meta = {name: p for name, p in module.named_parameters(recurse=False) if p.is_meta}
        buffers = {name: b for name, b in module.named_buffers(recurse=False) if b.is_meta}
        if not on_meta and not buffers:
            return
        if self._verbose:
            _log.info("initialising %s (%s)", self._names.get(module, ""), type(module).__name__)
        for name, parameter in on_meta.items():
            if parameter in self._made:
                module._parameters[name] = self._made[parameter]
        left = {name: p for name, p in on_meta.items() if p not in self._made}
        if buffers and not left and any(True for _ in module.parameters(recurse=False)):
            raise self._refused(module, buffers, "its parameters have their values already")
        if not left and not buffers:
            return
        if seeded or any((module, name) in self._distributed for name in left):
            with _seeded(states.get().settings.random_seed + list(self._names).index(module)):
                self._make(module, left, buffers)
        else:
            self._make(module, left, buffers)
        for name, parameter in left.items():
            made = module._parameters[name]
            assert made is not None, "an initialiser removed a parameter"
            self._made[parameter] = made

    def _make(self, module: nn.Module, parameters: dict[str, nn.Parameter], buffers: dict[str, torch.Tensor]) -> None:
        """Give the module whole tensors, initialise them, and keep this rank's part of those that ranks share."""
        device = states.get().device
        for name, parameter in parameters.items():
            shape = self._distributed.get((module, name), parameter).shape
            whole = torch.empty(shape, dtype=parameter.dtype, device=device)
            # Not `setattr`: a tensor-parallel module reads its attributes as local parts.
            module._parameters[name] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        empty = {name: torch.empty_like(buffer, device=device) for name, buffer in buffers.items()}
        module._buffers.update(empty)
        with torch.no_grad():
            self._initialize(module, buffers)
            # An initialiser that knows a buffer replaces it, or writes into it.
            if left := [name for name in empty if module._buffers[name] is empty[name] and not empty[name]._version]:
                raise self._refused(module, left, "its initialiser does not set them")
            for name, parameter in parameters.items():
                if (distributed := self._distributed.get((module, name))) is not None:
                    part = _part_like(distributed, module._parameters[name])
                    # `FullyShardedDataParallel` gets plain parts.
                    kept = part if _is_distributed(parameter) else part.to_local()
                    module._parameters[name] = nn.Parameter(kept, parameter.requires_grad)

    def _refused(self, module: nn.Module, buffers: Iterable[str], reason: str) -> ParallelError:
        return ParallelError(
            f"nothing computes the buffers {', '.join(buffers)} of {self._names.get(module) or 'the model'}"
            f" ({type(module).__name__}), which are on the meta device: {reason}. Set them in its reset_parameters, or"
            " register them outside of the meta device: self.register_buffer(name, tensor) with a tensor on the CPU"
        )

    def _initialize(self, module: nn.Module, buffers: Iterable[str] = ()) -> None:
        initialize = self._custom or self._initializers.get(module)
        if initialize is not None:
            initialize(module)
            return
        reset = getattr(module, "reset_parameters", None)
        if reset is None and buffers:
            raise self._refused(module, buffers, "it has no reset_parameters and is in no Hugging Face model")
        if reset is None:
            raise ParallelError(
                f"nothing initialises the parameters of {self._names.get(module) or 'the model'}"
                f" ({type(module).__name__}): it has no reset_parameters and is in no Hugging Face model. Give"
                " DelayedParamIniter(model, init_method_using_config=function), where function(module) sets them"
            )
        reset()


def _initializers(module: nn.Module, around: Initializer | None) -> Iterator[tuple[nn.Module, Initializer]]:
    """Yield each module with the `_init_weights` of the nearest Hugging Face model around it, if there is one."""
    around = getattr(module, "_init_weights", around)
    if around is not None:
        yield module, around
    for child in module.children():
        yield from _initializers(child, around)


def _is_distributed(parameter: torch.Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor)


def _part_like(distributed: Any, whole: Any) -> Any:
    """Return the whole value, distributed like a parameter. Every rank has that value already: nothing is sent."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.detach(), distributed.device_mesh, distributed.placements, src_data_rank=None)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw random numbers from this seed in the `with` block; the script's own sequence goes on afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
