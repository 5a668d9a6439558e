"""Updates that replicas divide: each one updates its part of the parameters, and keeps the optimizer states of it.

[1] `parameter.data` and `parameter.grad` become this rank's elements, as views of the whole ones
[2] the wrapped optimizer makes its step: its states have the size of the part
[3] the whole tensors return, and each rank gathers the updated elements of the others
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.layout import Layout, cut_runs
from herringbone_parallel.torch.model_parallel.shards.states import DividedStates

# The elements that are gathered together: as much memory beside the whole parameters.
_GATHERED = 25_000_000


class DividedUpdates:
    """The division of an optimizer's updates over the replicas of a model.

    updates = DividedUpdates(group)
    updates.add(named_parameters, optimizer)    # divides the states that the optimizer has
    updates.run(optimizer.step)
    """

    def __init__(self, group: ShardGroup) -> None:
        self._group = group
        self._layouts: list[Layout] = []
        self._known: set[int] = set()
        self.states = DividedStates(group)

    def add(self, named: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer) -> None:
        """Divide the updates of those parameters that are new."""
        fresh = [(name, parameter) for name, parameter in named if id(parameter) not in self._known and parameter.dim()]
        layouts = [Layout(run, self._group.size) for run in cut_runs(fresh, _GATHERED)]
        self._layouts += layouts
        self._known.update(id(parameter) for _, parameter in fresh)
        self.states.add(layouts)
        divide_states(self.states, fresh, optimizer)

    def run(self, step: Callable[[], Any]) -> Any:
        """Call `step` on this rank's part of the parameters; every replica must call it."""
        self._group.agree("optimizer.step()")
        wholes = [self._part(layout) for layout in self._layouts]
        try:
            result = step()
        finally:
            for layout, whole in zip(self._layouts, wholes, strict=True):
                for parameter, (data, gradient) in zip(layout.parameters, whole, strict=True):
                    parameter.grad = None
                    parameter.data = data
                    parameter.grad = gradient
        for layout in self._layouts:
            # Replicas have the same gradients, so all of them skip the same layouts.
            if any(parameter.grad is not None for parameter in layout.parameters):
                self._gather(layout)
        return result

    def _part(self, layout: Layout) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Make the parameters views of this rank's elements: [1]; return their whole values and gradients."""
        wholes = []
        for parameter, (start, end) in zip(layout.parameters, layout.ranges(self._group.index), strict=True):
            # A view below needs contiguous memory.
            data, gradient = parameter.data.contiguous(), parameter.grad
            wholes.append((data, gradient))
            parameter.grad = None
            parameter.data = data.view(-1)[start:end]
            if gradient is not None:
                parameter.grad = gradient.reshape(-1)[start:end]
        return wholes

    def _gather(self, layout: Layout) -> None:
        part = torch.zeros(layout.length, dtype=layout.dtype, device=layout.device)
        ranges = layout.ranges(self._group.index)
        for parameter, piece, (start, end) in zip(
            layout.parameters, layout.pieces(part, self._group.index), ranges, strict=True
        ):
            piece.copy_(parameter.data.view(-1)[start:end])
        flat = torch.empty(layout.length * layout.size, dtype=layout.dtype, device=layout.device)
        self._group.gather(flat, part)
        for parameter, view in zip(layout.parameters, layout.views(flat), strict=True):
            parameter.data.copy_(view)


def divide_states(
    states: DividedStates, named: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> None:
    """Keep this rank's elements of the states that an optimizer has for these parameters already."""
    for name, parameter in named:
        entry = optimizer.state.pop(parameter, None)
        if entry:
            parts = states.parts_of({name: entry})
            if name in parts:
                optimizer.state[parameter] = parts[name]
