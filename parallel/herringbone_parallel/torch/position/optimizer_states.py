"""The state of an optimizer by the names of its parameters, without touching the optimizer.

torch's `get_optimizer_state_dict` makes a step with gradients of zero where there is no state yet: it counts as a step,
and Adam's next update differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.optim import Optimizer

from herringbone_contract.checkpoint.manifest import Tensor
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.reading import dtype_of


def kind(optimizer: Optimizer) -> str:
    """Return the name of an optimizer's class, of smp's that of the wrapped one."""
    return type(getattr(optimizer, "optimizer", optimizer)).__qualname__


def check_kind(part: str, optimizer: Optimizer, saved: str | None) -> None:
    """Raise `ParallelError` for the state of another kind of optimizer: much of it would fit, and train wrongly."""
    if saved not in (None, kind(optimizer)):
        raise ParallelError(
            f"the checkpoint's part {part!r} is the state of {saved}, and the script's optimizer is {kind(optimizer)}:"
            f" go on with {saved}, or begin in another folder with the weights alone"
        )


def take(part: str, model: nn.Module, optimizer: Optimizer, reader: Any = None) -> dict[str, Any]:
    """Return the state as it is; with the reader of a checkpoint, tensors for what it has of the optimizer.

    Raises `ParallelError` for a state that is more than tensors and numbers of each parameter.
    """
    names = _names(model)
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    if reader is None:
        state = {names[id(parameter)]: dict(values) for parameter, values in optimizer.state.items() if values}
    else:
        parameters = {names[id(one)]: one for group in optimizer.param_groups for one in group["params"]}
        state = _room(part, parameters, reader)
    return {"state": state, "param_groups": groups}


def put(model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Let the optimizer go on from a state."""
    names = _names(model)
    optimizer.state.clear()
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
        for parameter in group["params"]:
            if values := state["state"].get(names[id(parameter)]):
                optimizer.state[parameter] = dict(values)


def _room(part: str, parameters: dict[str, torch.Tensor], reader: Any) -> dict[str, dict[str, Any]]:
    """Return what the checkpoint has of each parameter's state: values, and empty tensors like the parameter."""
    room: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for joined, content in {**reader.values(), **reader.manifest.tensors}.items():
        path = reader.split(joined)
        if path[:2] != (part, "state") or len(path) != 4 or path[2] not in room:
            continue
        name, key = path[2:]
        room[name][key] = _empty(joined, parameters[name], content) if isinstance(content, Tensor) else content
    return room


def _empty(name: str, parameter: torch.Tensor, entry: Tensor) -> torch.Tensor:
    dtype = dtype_of(name, entry.dtype)
    if entry.shape and tuple(entry.shape) == tuple(parameter.shape):
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(entry.shape, dtype=dtype)


def _names(model: nn.Module) -> dict[int, str]:
    """Return the names as torch's model states have them: without those of wrappers and compilers."""
    names = {}
    for name, parameter in model.named_parameters():
        whole = states._get_fqns(model, name)
        if len(whole) != 1:
            raise ParallelError(
                "FullyShardedDataParallel joins parameters into flat ones, whose states fit no other number of ranks:"
                " wrap the model by torch's fully_shard"
            )
        [names[id(parameter)]] = whole
    return names
