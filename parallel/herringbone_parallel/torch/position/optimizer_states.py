"""The state of an optimizer by the names of its parameters, without touching the optimizer.

torch's `get_optimizer_state_dict` makes a step with gradients of zero where there is no state yet: it counts as a step,
and Adam's next update differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.pieces import TYPES


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
        state = {name: _room(f"{part}.state.{name}.", parameter, reader) for name, parameter in parameters.items()}
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


def _room(prefix: str, parameter: torch.Tensor, reader: Any) -> dict[str, Any]:
    """Return what the checkpoint has of a parameter's state: values, and empty tensors like the parameter."""
    room: dict[str, Any] = {
        name.removeprefix(prefix): value for name, value in reader.values().items() if name.startswith(prefix)
    }
    for name, entry in reader.manifest.tensors.items():
        if not name.startswith(prefix):
            continue
        dtype = TYPES.get(entry.dtype)
        if dtype is None:
            raise ParallelError(f"{name!r} is of the type {entry.dtype}, which this torch has not")
        if tuple(entry.shape) == tuple(parameter.shape) and entry.shape:
            room[name.removeprefix(prefix)] = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            room[name.removeprefix(prefix)] = torch.empty(entry.shape, dtype=dtype)
    return room


def _names(model: nn.Module) -> dict[int, str]:
    # DistributedDataParallel's prefix is none of the model's: a checkpoint goes on without it.
    return {id(parameter): name.removeprefix("module.") for name, parameter in model.named_parameters()}
