"""The sharded training state of a model: parameters, gradients and optimizer states, each rank with its part.

The life of a step:

    [1] `begin`     every unit is opened, and gathered unless `LiveUnits` does that
    [2]             forwards and backwards add to the gradients of whole parameters
    [3] `reduce`    ranks vote which parameters were used, and units are reduced in the same order everywhere
    [4] `end`       parameters are pieces again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.replicas.reducer import NamedParameters
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.layout import cut_runs
from herringbone_parallel.torch.model_parallel.shards.live import LiveUnits, cut_modules
from herringbone_parallel.torch.model_parallel.shards.states import DividedStates
from herringbone_parallel.torch.model_parallel.shards.unit import Unit
from herringbone_parallel.torch.model_parallel.shards.updates import divide_states


class Limits(NamedTuple):
    """The figures of `sdp_*`, in elements.

    bucket      the largest number of gradients that are reduced together
    whole       parameters with fewer elements stay whole on every rank
    live        the largest number of elements that are gathered at a time
    """

    bucket: int
    whole: int
    live: int


class Wrapper(Protocol):
    """The part of `DistributedOptimizer` whose states are divided with the parameters."""

    optimizer: torch.optim.Optimizer


class FlatShard(NamedTuple):
    """This rank's elements of a tensor, from `start` on, and the shape of the whole tensor."""

    values: torch.Tensor
    start: int
    shape: torch.Size


class Shards:
    """This rank's part of the training state, in units.

        shards = Shards(group, limits, model.local_named_parameters, lambda: library.optimizers)
        shards.begin()
        ...                                     # forwards and backwards
        shards.end(shards.reduce())

    With `module`, and more elements than `limits.live`, units are gathered when a module of it uses them. Ranks then
    must call the modules in the same order. Microbatches of a pipeline do not, so a pipeline has no `module` here.

    Until the first step the parameters are whole: a script makes its groups of parameters by their shapes, and loads
    what it resumes from. `split` divides them, and a second call does nothing. It communicates nothing.
    """

    def __init__(
        self,
        group: ShardGroup,
        limits: Limits,
        named_parameters: NamedParameters,
        optimizers: Callable[[], Iterable[Wrapper]],
        module: nn.Module | None = None,
    ) -> None:
        self._group = group
        self._limits = limits
        self._named_parameters = named_parameters
        self._optimizers = optimizers
        self._module = module
        self._units: list[Unit] = []
        self._guard: RemovableHandle | None = None
        # False while the parameters are pieces.
        self._open = True
        # Gathers units one after another; None where all of them are gathered for a whole step.
        self._live: LiveUnits | None = None
        self._divided = False
        self.states = DividedStates(group)
        # By identity of a sharded parameter: its whole shape.
        self._shapes: dict[int, torch.Size] = {
            id(parameter): parameter.shape
            for _, parameter in named_parameters()
            # A scalar's optimizer states look like the counts of steps, which every rank needs.
            if parameter.dim() and parameter.numel() >= max(1, limits.whole)
        }

    @property
    def divided(self) -> bool:
        """Say whether the parameters are pieces already."""
        return self._divided

    def has(self, parameter: torch.Tensor) -> bool:
        """Say whether the ranks of the group divide this parameter, or will at the first step."""
        return id(parameter) in self._shapes

    def whole_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that stay whole, with their names."""
        return ((name, parameter) for name, parameter in self._named_parameters() if not self.has(parameter))

    def split(self) -> None:
        """Keep only this rank's part of the parameters, and of the state that optimizers have for them."""
        if self._divided:
            return
        self._divided, self._open = True, False
        sharded = [(name, parameter) for name, parameter in self._named_parameters() if self.has(parameter)]
        if self._module is not None and sum(p.numel() for _, p in sharded) > self._limits.live:
            # Half of the limit, so that a module and the code around it can both be gathered.
            most = min(self._limits.bucket, max(1, self._limits.live // 2))
            runs = cut_modules(self._module, sharded, most)
            self._units = [Unit(run, self._group) for _, run in runs]
            owners = [module for module, _ in runs]
            self._live = LiveUnits(list(zip(owners, self._units, strict=True)), self._limits.live)
        else:
            self._units = [Unit(run, self._group) for run in cut_runs(sharded, self._limits.bucket)]
        if self._module is not None:
            self._guard = self._module.register_forward_pre_hook(self._refuse_outside)
        self.states.add(self._units)
        for wrapper in self._optimizers():
            divide_states(self.states, sharded, wrapper.optimizer)

    def begin(self) -> None:
        """Open all units and gather them: [1]."""
        self.split()
        self._group.agree("the step function")
        for unit in self._units:
            unit.open()
        self._open = True
        if self._live is not None:
            self._live.begin()
            return
        for unit in self._units:
            unit.gather()

    def backward_ended(self) -> None:
        """Note that a backward has ended, of this rank's microbatch."""
        if self._live is not None:
            self._live.backward_ended()

    def retire(self) -> None:
        """Remove the hooks of modules and parameters, which reference the process group."""
        if self._live is not None:
            self._live.retire()
        if self._guard is not None:
            self._guard.remove()

    def _refuse_outside(self, _module: nn.Module, _args: object) -> None:
        if not self._open:
            raise ParallelError(
                "the wrapped module is called outside of a step, where this rank has only its part of the parameters:"
                " call the smp.DistributedModel inside a function decorated with @smp.step, also for an evaluation"
            )

    @property
    def peak(self) -> int:
        """The largest number of elements that were gathered at a time, so far."""
        return sum(unit.elements for unit in self._units) if self._live is None else self._live.peak

    def reduce(self) -> list[bool]:
        """Reduce all gradients, and return for each parameter of each unit whether any rank has used it: [3]."""
        used = [
            seen or parameter.grad is not None
            for unit in self._units
            for seen, parameter in zip(unit.used, unit.parameters, strict=True)
        ]
        votes = torch.tensor([*used, *(unit.pending for unit in self._units)], dtype=torch.int32)
        everyone = self._group.everyone
        total = everyone.wait(everyone.start_sum(votes))[0].tolist()
        for unit, pending in zip(self._units, total[len(used) :], strict=True):
            if pending:
                unit.reduce()
        return [vote > 0 for vote in total[: len(used)]]

    def end(self, used: list[bool] | None) -> None:
        """Free the whole parameters: [4]. `used` are the votes, None for a step without a backward."""
        if self._live is not None:
            self._live.end()
        position = 0
        for unit in self._units:
            count = len(unit.parameters)
            unit.free()
            unit.close([False] * count if used is None else used[position : position + count])
            position += count
        self._open = False

    @contextmanager
    def whole(self, action: str) -> Iterator[None]:
        """Gather all parameters for a `with` block that reads or writes them; every rank of the group must call it."""
        if not self._divided:
            yield
            return
        self._group.agree(action)
        for unit in self._units:
            unit.open()
            unit.gather()
        self._open = True
        try:
            yield
        finally:
            for unit in self._units:
                unit.take()
            self.end(None)

    def shape_of(self, parameter: torch.Tensor) -> torch.Size:
        """Return the shape of the whole parameter, which may be a piece."""
        return self._shapes.get(id(parameter), parameter.shape)

    def named_shards(self) -> dict[str, FlatShard]:
        """Return this rank's elements of each sharded parameter, without communication; they share memory with it."""
        self.split()
        shards = {}
        for unit in self._units:
            for name, parameter, part, shape in zip(unit.names, unit.parameters, unit.own, unit.shapes, strict=True):
                shards[name] = FlatShard(parameter.detach(), part.start, shape)
        return shards

    def adopt(self, other: torch.Tensor, parameter: torch.Tensor) -> None:
        """Note that `other` is divided as `parameter` is, such as its copy in another precision."""
        if self.has(parameter):
            self._shapes[id(other)] = self._shapes[id(parameter)]

    def total(self, value: torch.Tensor, *, largest: bool) -> torch.Tensor:
        """Return the sum, or the largest, of what the ranks of the group computed from their parts."""
        return self._group.total(value, largest=largest)
