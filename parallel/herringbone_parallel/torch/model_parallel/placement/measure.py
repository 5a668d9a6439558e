"""Measures a model for the partition: one run of the step function, on one rank, while the whole model is still there.

bytes      parameters and buffers, with gradient and optimizer state; what the backward keeps, for all microbatches
           that may be live at once
seconds    of each module's own operations, forward and backward: estimated, or taken from the clock
values     what one module makes and another uses, and whether a gradient comes back
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value
from herringbone_parallel.core.partition.work import Device
from herringbone_parallel.torch.model_parallel.placement.trace import Passed, Seen, Trace, watching
from herringbone_parallel.torch.model_parallel.placement.untouched import untouched

# Runs the user's step function once with everything on this rank, inside the context manager.
Run = Callable[[AbstractContextManager[None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What of a model is in memory at once: microbatches, and bytes of optimizer state for each byte of a parameter."""

    microbatches: int
    state_of: dict[int, float]


def measure(module: nn.Module, run: Run, device: Device, live: Live, *, clocked_link: Link | None = None) -> CostTree:
    """Return what a model costs; the model, its gradients and the random numbers to come stay as they were.

        tree = measure(module, run, CPU, Live(microbatches=4, state_of=optimizer_state_of(optimizers)))

    Seconds are estimates by `device`, the same in every run. With `clocked_link` they are clocked, in a second run, as
    the first one warms up; modules whose estimates are equal then share the mean of their times, which keeps noise
    from telling equal layers apart. An exception of the model's code passes through, with the module's name on it.
    """
    with untouched(module) as kept:
        for _ in range(1 if clocked_link is None else 2):
            trace = Trace(module, device, kept, clock=clocked_link is not None)
            run(watching(trace))
    seconds = _estimated(trace.seen) if clocked_link is None else _clocked(trace.seen)
    nodes = {
        path: CostNode(
            path=path,
            parameters=_held(inner, live.state_of),
            activation_bytes=trace.seen[path].kept_bytes * live.microbatches if path in trace.seen else 0,
            seconds=seconds.get(path, 0.0),
        )
        for path, inner in module.named_modules()
    }
    order = {path: seen.order for path, seen in trace.seen.items()}
    return CostTree(root=_grown(nodes, order), link=clocked_link or device.link, values=tuple(_values(trace.passed)))


def suppose(module: nn.Module, state_of: dict[int, float]) -> CostTree:
    """Return what a model may cost, for want of a run: work in proportion to parameters, in the order of definition.

    Passing from one module to the next is supposed to cost a hundredth of all work, so that neighbours stay together.
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
    total = sum(node.seconds for node in nodes.values())
    link = Link(seconds=total / 200, bytes_per_second=float("1e30"))
    return CostTree(root=_grown(nodes, {}), link=link)


def optimizer_state_of(optimizers: Iterable[torch.optim.Optimizer]) -> dict[int, float]:
    """Return, by the identity of each parameter, how many bytes of state its optimizer keeps for one byte of it.

        optimizer_state_of([torch.optim.Adam([weight])])    # {id(weight): 2.0}

    Before its first step, a copy of the optimizer is tried on one small parameter: Adam keeps two moments, SGD one
    momentum or nothing. State of another shape than the parameter's, and an optimizer that cannot be tried, count as
    nothing.
    """
    found: dict[int, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            fresh = _tried(optimizer, group)
            for parameter in group["params"]:
                kept = optimizer.state.get(parameter)
                found[id(parameter)] = _copies(kept, parameter) if kept else fresh
    return found


def _tried(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    probe = nn.Parameter(torch.zeros(4, 4))
    probe.grad = torch.ones_like(probe)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**group, "params": [probe]}]
    trial.state = defaultdict(dict)
    # The script's hooks are for the script's steps.
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    try:
        # Of the class: a scheduler may have put a counting `step` on the optimizer itself.
        type(optimizer).step(trial)
    except Exception:  # noqa: BLE001  anybody's optimizer; what it would keep is then unknown
        return 0.0
    return _copies(trial.state[probe], probe)


def _copies(state: Mapping[str, Any], parameter: torch.Tensor) -> float:
    kept = [entry for entry in state.values() if torch.is_tensor(entry) and entry.shape == parameter.shape]
    return sum(map(_bytes, kept)) / max(_bytes(parameter), 1)


def _held(module: nn.Module, state_of: dict[int, float]) -> dict[int, int]:
    """Return the bytes that a rank holds because of each of the module's own parameters and buffers."""
    held = {id(buffer): _bytes(buffer) for buffer in module._buffers.values() if buffer is not None}
    for parameter in module._parameters.values():
        if parameter is not None:
            copies = 2.0 + state_of.get(id(parameter), 0.0) if parameter.requires_grad else 1.0
            held[id(parameter)] = round(_bytes(parameter) * copies)
    return held


def _estimated(seen: dict[str, Seen]) -> dict[str, float]:
    return {path: one.estimated for path, one in seen.items()}


def _clocked(seen: dict[str, Seen]) -> dict[str, float]:
    times = defaultdict(list)
    for one in seen.values():
        times[one.estimated].append(one.clocked)
    return {path: sum(times[one.estimated]) / len(times[one.estimated]) for path, one in seen.items()}


def _grown(nodes: dict[str, CostNode], order: dict[str, int]) -> CostNode:
    """Return the tree; children in the order of their first call, those that were not called behind."""
    children: dict[str, list[str]] = defaultdict(list)
    for path in nodes:
        if path:
            children[path.rpartition(".")[0]].append(path)
    grown: dict[str, CostNode] = {}
    for path in reversed(nodes):
        below = sorted(children[path], key=lambda child: order.get(child, len(order)))
        node = nodes[path]
        grown[path] = CostNode(
            path=path,
            parameters=node.parameters,
            activation_bytes=node.activation_bytes,
            seconds=node.seconds,
            input_bytes=node.input_bytes,
            children=tuple(grown[child] for child in below),
        )
    return grown[""]


def _values(passed: Iterable[Passed]) -> Iterator[Value]:
    for value in passed:
        most = max(value.users.values())
        yield Value(
            source=value.source,
            users=tuple(value.users),
            forward_bytes=most,
            backward_bytes=most if value.gradient else 0,
        )


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
