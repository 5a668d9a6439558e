"""Divides a measured step over the partitions of a pipeline, by the partitioner that the runtime itself uses.

    stages = Stages(measurement)
    partition = stages.of(layout)
    partition.calls         # the partition of each call
    partition.messages      # values that pass between partitions in one microbatch

A module whose parameters are all on one partition runs there. Calls of any other module run where the call before them
runs, because that call made their inputs; in a backward, where the call after them runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Value
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.prediction.layout import Layout
from herringbone_parallel.core.prediction.measurement import Measurement, Phase, prefixes

# The same as those of `torch.model_parallel.placement.partitioning`, so that the partition is the runtime's.
_REVISIT_COST = {"simple": 0.03}
_REVISIT_COST_OF_OTHERS = 0.1

# No single partition: code of a container that several partitions run, or of an optimizer.
SEVERAL = -1


class Message(NamedTuple):
    """A value that one partition makes and another uses, in each microbatch, and the gradient that comes back."""

    source: int
    target: int
    forward_bytes: int
    backward_bytes: int


class _Moved(NamedTuple):
    source: int
    target: int
    value: Value


class Visit(NamedTuple):
    """Successive calls of a microbatch's forward on one partition, from `start` up to `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Partition:
    """The measured step, divided over `count` partitions.

    `modules`, `parameters` and `calls` have the partition of each module, parameter and call of the measurement.
    `SEVERAL` marks what belongs to no single one. `messages` are of one microbatch of the layout, and so are `visits`,
    the way of its forward through the partitions. `seen` is the number of calls in its forward that every rank sees: of
    a module of one partition, with all inside, or of an operation outside of those. Partitions of one measurement with
    the same modules have the same `assignment`.
    """

    count: int
    modules: NDArray[np.int64]
    parameters: NDArray[np.int64]
    calls: NDArray[np.int64]
    messages: tuple[Message, ...] = ()
    visits: tuple[Visit, ...] = ()
    seen: int = 0
    assignment: int = 0


class Stages:
    """The partitions of one measurement, each decided once.

    stages = Stages(measurement)
    stages.of(layout).count

    A search may take splits that are `good_enough`: proven to cost at most this fraction more than the best split.
    """

    def __init__(self, measurement: Measurement, good_enough: float = 0.0) -> None:
        self._good_enough = good_enough
        self._measurement = measurement
        self._index = {module.path: index for index, module in enumerate(measurement.modules)}
        self._call_modules = np.array([call.module for call in measurement.calls], dtype=np.int64)
        self._phases = np.array([call.phase for call in measurement.calls], dtype=np.int64)
        self._microbatches = np.array([call.microbatch for call in measurement.calls], dtype=np.int64)
        self._owners = np.array([parameter.module for parameter in measurement.parameters], dtype=np.int64)
        # By the partition of each module, as bytes: the number of the assignment.
        self._assignments: dict[bytes, int] = {}
        self._by_assignment: dict[int, Partition] = {}
        self._rough: dict[tuple[object, ...], Partition] = {}
        self._known: dict[tuple[object, ...], Partition] = {}
        # By assignment.
        self._moves: dict[int, list[_Moved]] = {}

    def of(self, layout: Layout) -> Partition:
        """Return the partition that the runtime would decide for a layout.

        Raises `ParallelError` if the model has too few modules, or was measured without a tree of costs.
        """
        count = layout.mesh.pipeline
        size = layout.batch_scale * self._measurement.microbatches / layout.microbatches
        own = size if layout.prescaled_batch else size / layout.mesh.tensor
        key = (count, layout.memory_weight, layout.pipeline == "simple", layout.live, own) if count > 1 else (1,)
        if key not in self._known:
            self._known[key] = self._decide(layout, size) if count > 1 else self._whole()
        return self._known[key]

    def _whole(self) -> Partition:
        measurement = self._measurement
        lengths = (len(measurement.modules), len(measurement.parameters), len(measurement.calls))
        modules, parameters, calls = (np.zeros(length, dtype=np.int64) for length in lengths)
        return Partition(1, modules, parameters, calls)

    def _decide(self, layout: Layout, size: float) -> Partition:
        tree = self._measurement.tree
        if tree is None:
            raise ParallelError(
                "the script was measured without the costs from which a pipeline's partition is decided: it needs"
                " smp.DistributedModel. Use a layout with one partition"
            )
        own = size if layout.prescaled_batch else size / layout.mesh.tensor
        divided = self._divided(layout, tree, own)
        if divided.assignment not in self._moves:
            self._moves[divided.assignment] = list(self._moved(tree, divided.modules, divided.calls))
        messages = (
            Message(source, target, round(value.forward_bytes * own), round(value.backward_bytes * own))
            for source, target, value in self._moves[divided.assignment]
        )
        return replace(divided, messages=tuple(messages))

    def _divided(self, layout: Layout, tree: CostTree, size: float) -> Partition:
        """Return the partition without its messages, for microbatches of `size` on a rank."""
        revisit_cost = _REVISIT_COST.get(layout.pipeline, _REVISIT_COST_OF_OTHERS)
        count = layout.mesh.pipeline
        # The size of a microbatch changes all seconds alike, and partitions compare by their shares. Only the latency
        # of messages stays, so a split that is good enough for one size is so for others with the same activations.
        key = (count, layout.memory_weight, revisit_cost, round(size * layout.live, 9))
        if self._good_enough and key in self._rough:
            return self._rough[key]
        decision = decide(
            _scaled(tree, size, layout.live),
            count,
            memory_weight=layout.memory_weight,
            revisit_cost=revisit_cost,
            good_enough=self._good_enough,
        )
        modules = self._homes(decision.assigned)
        assignment = self._assignments.setdefault(modules.tobytes(), len(self._assignments))
        if assignment not in self._by_assignment:
            calls = self._calls(modules)
            self._by_assignment[assignment] = Partition(
                count=count,
                modules=modules,
                parameters=np.array([decision.assigned.get(p, 0) for p in self._owner_paths()], dtype=np.int64),
                calls=calls,
                visits=tuple(self._visits(calls)),
                seen=self._seen(modules),
                assignment=assignment,
            )
        self._rough[key] = self._by_assignment[assignment]
        return self._rough[key]

    def _owner_paths(self) -> list[str]:
        return [self._measurement.modules[parameter.module].path for parameter in self._measurement.parameters]

    def _homes(self, assigned: dict[str, int]) -> NDArray[np.int64]:
        """Return the partition of each module: that of all parameters in it, else `SEVERAL`."""
        below: dict[str, set[int]] = {}
        for path, partition in assigned.items():
            for prefix in prefixes(path):
                below.setdefault(prefix, set()).add(partition)
        homes = np.full(len(self._measurement.modules), SEVERAL, dtype=np.int64)
        for path, index in self._index.items():
            partitions = below.get(path, set())
            if len(partitions) == 1:
                homes[index] = next(iter(partitions))
        return homes

    def _calls(self, homes: NDArray[np.int64]) -> NDArray[np.int64]:
        calls = homes[self._call_modules]
        forward = self._phases <= Phase.RECOMPUTE
        backward = self._phases == Phase.BACKWARD
        for microbatch in np.unique(self._microbatches):
            own = self._microbatches == microbatch
            calls[own & forward] = _filled(calls[own & forward])
            calls[own & backward] = _filled(calls[own & backward][::-1])[::-1]
        return calls

    def _moved(self, tree: CostTree, homes: NDArray[np.int64], calls: NDArray[np.int64]) -> Iterator[_Moved]:
        """Yield the values of the tree that pass between partitions; a value moves once to each that uses it."""
        first = self._first_calls
        for value in tree.values:
            users = [self._index[user] for user in value.users if user in self._index]
            source = homes[self._index[value.source]] if value.source in self._index else SEVERAL
            if source == SEVERAL:
                # Code of several partitions made it, just before the first user's call and where its inputs were.
                begin = min((first[user] for user in users if first[user] >= 0), default=0)
                source = calls[max(begin - 1, 0)] if len(calls) else 0
            # Such code runs where most of its inputs are, so this value stays.
            for target in sorted({int(homes[user]) for user in users} - {SEVERAL, int(source)}):
                yield _Moved(int(source), target, value)

    def _visits(self, calls: NDArray[np.int64]) -> Iterator[Visit]:
        forward = self._first_forward
        borders = np.flatnonzero(np.diff(calls[forward])) + 1
        for run in np.split(forward, borders):
            if len(run):
                yield Visit(int(calls[run[0]]), int(run[0]), int(run[-1]) + 1)

    def _seen(self, homes: NDArray[np.int64]) -> int:
        # Of each module: the outermost one around it that one partition runs. Parents come before their children.
        outermost = np.full(len(homes), SEVERAL)
        for path, index in self._index.items():
            above = next((above for above in prefixes(path) if above in self._index and above != path), None)
            around = SEVERAL if above is None else outermost[self._index[above]]
            outermost[index] = index if around == SEVERAL and homes[index] != SEVERAL else around
        modules = outermost[self._call_modules[self._first_forward]]
        begins = np.diff(modules, prepend=SEVERAL) != 0
        return int(np.count_nonzero(begins | (modules == SEVERAL)))

    @cached_property
    def _first_forward(self) -> NDArray[np.int64]:
        """The calls of the first microbatch's forward."""
        return np.flatnonzero((self._phases == Phase.FORWARD) & (self._microbatches == 0))

    @cached_property
    def _first_calls(self) -> list[int]:
        """The first forward call in each module, those in it included; -1 for a module that is not called."""
        first = [-1] * len(self._measurement.modules)
        forward = np.flatnonzero(self._phases == Phase.FORWARD)
        for call in forward[::-1].tolist():
            for path in prefixes(self._measurement.modules[self._call_modules[call]].path):
                if path in self._index:
                    first[self._index[path]] = call
        return first


def _filled(partitions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the partitions with each gap filled by the one before it; a gap at the start belongs to the first one.

    >>> _filled(np.array([-1, 0, -1, 1, -1]))
    array([0, 0, 0, 1, 1])
    """
    known = np.flatnonzero(partitions != SEVERAL)
    if not len(known):
        return np.zeros_like(partitions)
    positions = np.searchsorted(known, np.arange(len(partitions)), side="right") - 1
    return partitions[known[np.maximum(positions, 0)]]


def _scaled(tree: CostTree, size: float, live: int) -> CostTree:
    """Return the tree for microbatches of another size, of which `live` wait for their backward at once."""

    def scale(node: CostNode) -> CostNode:
        return msgspec.structs.replace(
            node,
            activation_bytes=round(node.activation_bytes * size * live),
            seconds=node.seconds * size,
            input_bytes=round(node.input_bytes * size),
            children=tuple(map(scale, node.children)),
        )

    values = tuple(
        msgspec.structs.replace(
            value, forward_bytes=round(value.forward_bytes * size), backward_bytes=round(value.backward_bytes * size)
        )
        for value in tree.values
    )
    return msgspec.structs.replace(tree, root=scale(tree.root), values=values)
