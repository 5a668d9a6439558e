"""Measure a model for the partition: one run of the step function on one rank, which still has the whole model.

bytes      parameters and buffers, with gradients and optimizer state; tensors that the backward keeps, for all
           microbatches that may be live at once
seconds    of each module's own operations, forward and backward: estimated, or measured with the clock
values     tensors that one module makes and another uses, and whether a gradient comes back
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value, tree_of
from herringbone_parallel.core.partition.work import Device
from herringbone_parallel.torch.model_parallel.placement.trace import ModuleCost, SharedTensor, Trace, watching
from herringbone_parallel.torch.model_parallel.placement.untouched import untouched
from herringbone_parallel.torch.step_hook import not_counting

# Runs the user's step function once with everything on this rank, inside the context manager.
Run = Callable[[AbstractContextManager[None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The parts of a model's memory that no single run shows.

    `microbatches` is the number of microbatches that may be live at once. `state_of` is the optimizer's state in bytes
    per byte of a parameter, by the parameter's identity.
    """

    microbatches: int
    state_of: dict[int, float]


def measure(module: nn.Module, run: Run, device: Device, live: Live, *, clocked_link: Link | None = None) -> CostTree:
    """Return the costs of a model. The model, its gradients and the random number generators are restored.

        tree = measure(module, run, CPU, Live(microbatches=4, state_of=optimizer_state_of(optimizers)))

    Seconds are estimates by `device`, the same in every run. With `clocked_link` they are measured in a second run,
    because the first one warms up. Modules with equal estimates then share the mean of their times, so that noise does
    not make equal layers look different. An exception of the model's code passes through, with the module's name on it.
    """
    with untouched(module) as saved, not_counting():
        for _ in range(1 if clocked_link is None else 2):
            trace = Trace(module, device, saved, clock=clocked_link is not None)
            run(watching(trace))
    costs = trace.costs
    seconds = _estimated(costs) if clocked_link is None else _clocked(costs)
    nodes = {
        path: CostNode(
            path=path,
            parameters=_held(inner, live.state_of),
            activation_bytes=costs[path].kept_bytes * live.microbatches if path in costs else 0,
            seconds=seconds.get(path, 0.0),
        )
        for path, inner in module.named_modules()
    }
    order = {path: cost.order for path, cost in costs.items()}
    return CostTree(root=tree_of(nodes, order), link=clocked_link or device.link, values=tuple(_values(trace.shared)))


def suppose(module: nn.Module, state_of: dict[int, float]) -> CostTree:
    """Return assumed costs of a model without a run: work in proportion to parameters, in the order of definition.

    The passage from one module to the next is assumed to cost a hundredth of all work, so that neighbours stay
    together.
    """
    nodes = {
        path: CostNode(
            path=path,
            parameters=_held(inner, state_of),
            seconds=float(sum(map(_bytes, inner._parameters.values()))),
            input_bytes=1,
        )
        for path, inner in module.named_modules()
    }
    total = math.fsum(node.seconds for node in nodes.values())
    link = Link(seconds=total / 200, bytes_per_second=float("1e30"))
    return CostTree(root=tree_of(nodes, {}), link=link)


def optimizer_state_of(optimizers: Iterable[torch.optim.Optimizer], *, masters: bool = False) -> dict[int, float]:
    """Return the bytes of state that an optimizer keeps for one byte of each parameter, by the parameter's identity.

        optimizer_state_of([torch.optim.Adam([weight])])    # {id(weight): 2.0}

    Before the optimizer's first step, a copy of it takes one step with a small parameter: Adam keeps two moments, SGD
    one momentum or nothing. State of another shape than the parameter's counts as nothing, and so does an optimizer
    that fails in this step. With `masters` the optimizer updates a float32 copy of each 16-bit parameter, which has a
    gradient of its own.
    """
    state_of: dict[int, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            expected = _state_after_trial(optimizer, group)
            for parameter in group["params"]:
                entries = optimizer.state.get(parameter)
                copies = _copies(entries, parameter) if entries else expected
                if masters and parameter.element_size() == 2:
                    # Two bytes of the parameter are four of each: the copy, its gradient, the state.
                    copies = 2 * (2 + copies)
                state_of[id(parameter)] = copies
    return state_of


def _state_after_trial(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    # Two dimensions, because some optimizers keep factored state for matrices only.
    probe = nn.Parameter(torch.zeros(4, 4))
    probe.grad = torch.ones_like(probe)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**group, "params": [probe]}]
    trial.state = defaultdict(dict)
    # The hooks of the script must not run: this is no step of the script.
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    try:
        # The method of the class: a scheduler may have put a counting `step` on the instance.
        with not_counting():
            type(optimizer).step(trial)
    except Exception:  # noqa: BLE001  an optimizer of the user may raise anything; its state is then unknown
        return 0.0
    return _copies(trial.state[probe], probe)


def _copies(state: Mapping[str, Any], parameter: torch.Tensor) -> float:
    tensors = [entry for entry in state.values() if torch.is_tensor(entry) and entry.shape == parameter.shape]
    return sum(map(_bytes, tensors)) / max(_bytes(parameter), 1)


def _held(module: nn.Module, state_of: dict[int, float]) -> dict[int, int]:
    """Return the bytes that a rank holds because of each of the module's own parameters and buffers."""
    held = {id(buffer): _bytes(buffer) for buffer in module._buffers.values() if buffer is not None}
    for parameter in module._parameters.values():
        if parameter is not None:
            # The parameter and its gradient, and the optimizer's state.
            copies = 2.0 + state_of.get(id(parameter), 0.0) if parameter.requires_grad else 1.0
            held[id(parameter)] = round(_bytes(parameter) * copies)
    return held


def _estimated(costs: dict[str, ModuleCost]) -> dict[str, float]:
    return {path: cost.estimated for path, cost in costs.items()}


def _clocked(costs: dict[str, ModuleCost]) -> dict[str, float]:
    """Return the mean of the measured times of all modules with the same estimate."""
    times = defaultdict(list)
    for cost in costs.values():
        times[cost.estimated].append(cost.clocked)
    return {path: fmean(times[cost.estimated]) for path, cost in costs.items()}


def _values(shared: Iterable[SharedTensor]) -> Iterator[Value]:
    for tensor in shared:
        most = max(tensor.users.values())
        yield Value(
            source=tensor.source,
            users=tuple(tensor.users),
            forward_bytes=most,
            backward_bytes=most if tensor.gradient else 0,
        )


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
