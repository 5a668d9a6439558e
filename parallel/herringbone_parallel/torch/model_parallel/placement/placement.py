"""Homes: the pipeline rank that holds the parameters of a module and runs its calls.

module whose parameters all live on one rank   has that rank as home; a call from outside runs there as a whole
module with parameters on several ranks        has no home: its code runs on every rank
module without parameters or buffers           has its home where its inputs are
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.local_parts import own_parameters
from herringbone_parallel.torch.model_parallel.placement.foreign import (
    EVERYWHERE_ATTRIBUTE,
    ForeignParameter,
    OwnedParameter,
    serve_initialisers,
)
from herringbone_parallel.torch.model_parallel.runtime.microbatch import (
    HOME_ATTRIBUTE,
    OWNER_ATTRIBUTE,
    PATH_ATTRIBUTE,
    current,
)
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor

# The attribute of a module that holds the partition that the user put it on.
PARTITION_ATTRIBUTE = "_smp_partition"
_original_call = nn.Module.__call__
_original_init = nn.Module.__init__
_named_parameters, _save_to_state_dict = nn.Module.named_parameters, nn.Module._save_to_state_dict


class Home(NamedTuple):
    """The pipeline rank that runs a module's calls; None is the rank that has most of the inputs."""

    path: str
    rank: int | None


@contextmanager
def partition(index: int) -> Iterator[None]:
    """Put the modules created inside the `with` block on this partition; the innermost block decides.

        with smp.partition(1):
            self.head = nn.Linear(128, 10)

    Used with `auto_partition: False`; an automatic partition ignores it, as SMP v1 does.
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ParallelError(f"smp.partition takes the number of a partition, from 0, not {index!r}")
    before = nn.Module.__init__

    def marked_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        _original_init(self, *args, **kwargs)
        self.__dict__[PARTITION_ATTRIBUTE] = index

    nn.Module.__init__ = marked_init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = before  # type: ignore[method-assign]


def assign_by_hand(model: nn.Module, partitions: int, default: int) -> dict[str, int]:
    """Return the partition that the user put each module on, `default` for the other modules.

    Raises `ParallelError` for a partition that does not exist, one that stays empty, or a parameter put on two.
    """
    assigned = {}
    # By identity of a tensor: the first module that has it, and that module's partition.
    first_user: dict[int, tuple[str, int]] = {}
    for path, module in model.named_modules():
        index = module.__dict__.get(PARTITION_ATTRIBUTE, default)
        if index >= partitions:
            raise ParallelError(f"module {path!r} is put on partition {index}; there are {partitions}, from 0")
        for tensor in _own_tensors(module):
            other, other_index = first_user.setdefault(id(tensor), (path, index))
            if other_index != index:
                raise ParallelError(
                    f"modules {other!r} (partition {other_index}) and {path!r} (partition {index}) share a parameter;"
                    " put both on the same partition"
                )
            assigned[path] = index
    empty = sorted(set(range(partitions)) - set(assigned.values()))
    if empty:
        raise ParallelError(
            f"no module with parameters is on partition {empty[0]}: create some inside"
            f" `with smp.partition({empty[0]}):`, lower `partitions`, or set `auto_partition`"
        )
    return assigned


def settle(model: nn.Module, assigned: dict[str, int], rank: int, device: torch.device) -> None:
    """Give the modules their homes, move the tensors of `rank` to `device`, and drop the data of all others."""
    _give_homes(model, assigned)
    _drop_foreign(model, assigned, rank, device)
    nn.Module.__call__ = _placed_call  # type: ignore[method-assign]
    nn.Module.named_parameters = _placed_named_parameters  # type: ignore[method-assign]
    nn.Module._save_to_state_dict = _save_placed_to_state_dict  # type: ignore[method-assign]
    serve_initialisers()


@functools.wraps(_original_call)
def _placed_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    microbatch = current()
    home: Home | None = self.__dict__.get(HOME_ATTRIBUTE) if microbatch is not None else None
    if microbatch is None or home is None:
        if microbatch is not None and (self._backward_hooks or self._backward_pre_hooks):
            _refuse_backward_hooks(self, args, kwargs)
        return _original_call(self, *args, **kwargs)
    function: Callable[..., Any] = functools.partial(_original_call, self)
    if microbatch.wrap is not None:
        function = microbatch.wrap(function)
    result = microbatch.call(home.path, home.rank, function, args, kwargs)
    if microbatch.kept.parameters:
        differentiated = any(leaf.requires_grad for leaf in leaves_of(result) if isinstance(leaf, PlacedTensor))
        for parameter in own_parameters(self):
            microbatch.kept.note_use(parameter, differentiated=differentiated)
    return result


@functools.wraps(_named_parameters)
def _placed_named_parameters(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters with their names; in code of every rank, those of one rank as placed tensors.

    loss = loss + 1e-4 * sum(parameter.square().sum() for parameter in model.parameters())
    """
    microbatch = current()
    for name, parameter in _named_parameters(self, *args, **kwargs):
        yield name, parameter if microbatch is None else microbatch.place_parameter(parameter)


@functools.wraps(_save_to_state_dict)
def _save_placed_to_state_dict(self: nn.Module, destination: Any, prefix: str, keep_vars: bool) -> None:
    microbatch = current()
    with nullcontext() if microbatch is None else torch._C.DisableTorchFunctionSubclass():
        _save_to_state_dict(self, destination, prefix, keep_vars)
    if microbatch is None:
        return
    for name, parameter in self._parameters.items():
        placed = microbatch.place_parameter(parameter)
        if placed is not parameter:
            destination[prefix + name] = placed if keep_vars else placed.detach()


def _refuse_backward_hooks(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Raise `ParallelError` if the backward of a call would be on several ranks; torch would not call the hooks."""
    split = any(hasattr(parameter, OWNER_ATTRIBUTE) for parameter in own_parameters(module))
    if split or any(isinstance(leaf, PlacedTensor) for leaf in leaves_of((args, kwargs))):
        raise ParallelError(
            f"a backward hook on a {type(module).__name__} whose code runs on every rank: register it on the modules in"
            " it that are placed on one rank"
        )


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]


def _give_homes(model: nn.Module, assigned: dict[str, int]) -> None:
    rank_of = {id(module): assigned[path] for path, module in model.named_modules() if path in assigned}
    # Inner modules have homes too: code outside may call them without the module that contains them.
    for path, module in model.named_modules():
        below = {rank_of[id(inner)] for inner in module.modules() if id(inner) in rank_of}
        if len(below) <= 1:
            module.__dict__[HOME_ATTRIBUTE] = Home(path or type(module).__name__, next(iter(below), None))


def _drop_foreign(model: nn.Module, assigned: dict[str, int], rank: int, device: torch.device) -> None:
    # Modules whose code runs on one rank only, and all modules inside them. A container such as ParameterList has no
    # code: the code around it uses its parameters.
    run_on_one_rank = {
        id(inner)
        for module in model.modules()
        if HOME_ATTRIBUTE in module.__dict__ and type(module).forward is not nn.Module.forward
        for inner in module.modules()
    }
    replaced: dict[int, nn.Parameter] = {}
    # Kept until the end, so that no other object gets the identity of one of them.
    originals: list[nn.Parameter] = []
    for path, module in model.named_modules():
        if path not in assigned:
            continue
        owner = assigned[path]
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if owner == rank:
                parameter.data = parameter.data.to(device)
            else:
                # A new object, so that the data is freed when the optimizer drops the old one, at the first step.
                if id(parameter) not in replaced:
                    originals.append(parameter)
                    meta = torch.empty_like(parameter, device="meta")
                    foreign = replaced[id(parameter)] = nn.Parameter(meta, parameter.requires_grad)
                    foreign.__class__ = ForeignParameter
                parameter = replaced[id(parameter)]
                module._parameters[name] = parameter
            setattr(parameter, OWNER_ATTRIBUTE, owner)
            # The first name of a tied parameter.
            vars(parameter).setdefault(PATH_ATTRIBUTE, f"{path}.{name}" if path else name)
            if id(module) not in run_on_one_rank:
                if owner == rank:
                    parameter.__class__ = OwnedParameter
                else:
                    setattr(parameter, EVERYWHERE_ATTRIBUTE, True)
        for name, buffer in module._buffers.items():
            # Code that runs on every rank reads its buffers on every rank.
            kept = owner == rank or id(module) not in run_on_one_rank
            if buffer is not None:
                module._buffers[name] = buffer.to(device if kept else "meta")
    _replace_listed(model, replaced)


def _replace_listed(model: nn.Module, replaced: dict[int, nn.Parameter]) -> None:
    """Replace the parameters in lists that modules keep of them, by identity of the old parameter.

    `nn.LSTM` has such a list, `_flat_weights`: the data of other ranks' layers would never be freed.
    """
    for module in model.modules():
        # None ends `flatten_parameters`, which code on every rank may call: torch 2.2 reads the data of each weight.
        new: dict[int, Any] = dict.fromkeys(replaced) if isinstance(module, nn.RNNBase) else {**replaced}
        for listed in module.__dict__.values():
            if type(listed) is list and any(id(item) in new for item in listed):
                listed[:] = [new.get(id(item), item) for item in listed]
