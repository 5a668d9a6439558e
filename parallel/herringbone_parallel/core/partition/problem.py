"""Turns a cost tree into the partition problem: groups of modules that cannot be separated, and the flows between them.

A cost tree becomes a problem in three steps.

[1] A module with parameters of its own is a unit. A module without runs where its inputs are, so its costs go to the
    unit called before it. A container's own operations finish its result, so they go to the last unit inside it.
[2] Units that share a parameter must be on one rank: they form one group (union-find) and count the parameter once.
[3] Values between modules become flows between groups.

The cost of a partition k is a share of the whole model's (Karakus et al., arXiv 2111.05972, for the first two terms):

    cost(k) = w * memory(k) / sum(memory) + (1 - w) * (seconds(k) + communication(k)) / sum(seconds)

with `w` the `memory_weight`. `communication(k)` is the time of every message that k sends or receives: a rank is busy
while it copies, so both ends pay (the model of Archer et al., ICML 2024). A value moves once to each partition that
uses it. A full pipeline finishes a microbatch every max(seconds + communication). So with w = 0 the greatest cost is
the step time per microbatch, as a share of the time of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Value

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that group `source` makes and the groups `users` use, sorted and without the source.

    `seconds` is the time of one transfer, with its gradient's.
    """

    source: int
    users: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Groups in the order of their first call, and the flows between them.

    `members` are the paths of each group's modules. `cost` is each group's share without communication, and
    `seconds_share` is the cost of a second of communication. `memory` is in bytes, `seconds` in seconds. `scattered`
    are the groups with other groups between their members in call order.
    """

    members: tuple[tuple[str, ...], ...]
    cost: Floats
    memory: Floats
    seconds: Floats
    flows: tuple[Flow, ...]
    seconds_share: float
    scattered: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads of the partitions: cost (communication included), bytes, seconds, and seconds of communication."""

    cost: Floats
    memory: Floats
    seconds: Floats
    communication: Floats

    @property
    def rank(self) -> tuple[float, float]:
        """The key by which splits compare: the greatest cost, then all communication."""
        return float(self.cost.max()), float(self.communication.sum())


def weigh(problem: Problem, labels: Sequence[int], partitions: int) -> Loads:
    """Return the load of each partition when group g is on partition `labels[g]`."""
    partition_of = np.asarray(labels)
    communication = np.zeros(partitions)
    for flow in problem.flows:
        home = labels[flow.source]
        # A set, because a value moves once to a partition however many of its groups use it.
        for partition in {labels[user] for user in flow.users} - {home}:
            # Both ends are busy during a transfer.
            communication[partition] += flow.seconds
            communication[home] += flow.seconds
    cost = np.bincount(partition_of, problem.cost, partitions) + problem.seconds_share * communication
    return Loads(
        cost,
        np.bincount(partition_of, problem.memory, partitions).astype(np.float64),
        np.bincount(partition_of, problem.seconds, partitions).astype(np.float64),
        communication,
    )


def revisits(problem: Problem, labels: Sequence[int]) -> bool:
    """Return True if the call order comes back to a partition that it has left; scattered groups do not count."""
    # A scattered group comes back in every split, so it says nothing about this one.
    order = [label for group, label in enumerate(labels) if group not in problem.scattered]
    # n partitions in contiguous runs change n - 1 times.
    return sum(before != label for before, label in pairwise(order)) >= len(set(order))


def make_problem(tree: CostTree, memory_weight: float) -> Problem:
    """Return the partition problem of a cost tree.

    Raises `ParallelError` when a path occurs twice, or a value names a module that the tree lacks.
    """
    units, unit_of = _units(tree.root)  # [1]
    group_of_unit = _merge_shared(units)  # [2]
    count = max(group_of_unit, default=-1) + 1
    members: list[list[str]] = [[] for _ in range(count)]
    parameters: list[dict[int, int]] = [{} for _ in range(count)]
    memory, seconds = np.zeros(count), np.zeros(count)
    for unit, group in zip(units, group_of_unit, strict=True):
        members[group].append(unit.path)
        # By identity, so that a shared parameter counts once.
        parameters[group].update(unit.parameters)
    # Modules without parameters add their costs to the group of their unit.
    for node in tree.root.walk() if units else ():
        group = group_of_unit[unit_of[node.path]]
        memory[group] += node.activation_bytes
        seconds[group] += node.seconds
    memory += [sum(held.values()) for held in parameters]
    group_of = {path: group_of_unit[unit] for path, unit in unit_of.items()}
    cost, seconds_share = _shares(memory, seconds, memory_weight)
    return Problem(
        members=tuple(map(tuple, members)),
        cost=cost,
        memory=memory,
        seconds=seconds,
        flows=_flows(tree, tree.values or _chain(units), group_of),
        seconds_share=seconds_share,
        scattered=_scattered(group_of_unit),
    )


def _units(root: CostNode) -> tuple[list[CostNode], dict[str, int]]:
    """Return the units in call order, and for every module the index of the unit that carries its costs: [1]."""
    units: list[CostNode] = []
    unit_of: dict[str, int] = {}
    # A stack rather than recursion, because models nest deeper than Python's limit allows. A container without
    # parameters comes twice: before its children, and after them, when the last unit inside it is known.
    waiting = [(root, False)]
    while waiting:
        node, children_done = waiting.pop()
        if children_done:
            unit_of[node.path] = max(len(units) - 1, 0)
            continue
        if node.path in unit_of:
            raise ParallelError(f"the cost tree has two modules of the path {node.path!r}; each module is one node")
        unit_of[node.path] = len(units)
        if node.parameters:
            units.append(node)
        else:
            waiting.append((node, True))
        waiting.extend((child, False) for child in reversed(node.children))
    return units, unit_of


def _merge_shared(units: Sequence[CostNode]) -> list[int]:
    """Return the group of each unit [2]; groups are numbered by their first unit."""
    root = list(range(len(units)))

    def find(unit: int) -> int:
        while root[unit] != unit:
            # Path halving keeps the trees flat.
            root[unit] = root[root[unit]]
            unit = root[unit]
        return unit

    first: dict[int, int] = {}
    for index, unit in enumerate(units):
        for identity in unit.parameters:
            lower, higher = sorted((find(first.setdefault(identity, index)), find(index)))
            # The lower index stays the root, so that a group has the position of its first unit.
            root[higher] = lower
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(unit), len(numbers)) for unit in range(len(units))]


def _scattered(group_of_unit: Sequence[int]) -> tuple[int, ...]:
    """Return the groups whose units are not consecutive in call order."""
    positions: dict[int, list[int]] = {}
    for position, group in enumerate(group_of_unit):
        positions.setdefault(group, []).append(position)
    return tuple(group for group, units in positions.items() if units[-1] - units[0] >= len(units))


def _shares(memory: Floats, seconds: Floats, memory_weight: float) -> tuple[Floats, float]:
    """Return each group's cost, and the cost of a second of communication; an amount not measured weighs nothing."""
    total_memory, total_seconds = float(memory.sum()), float(seconds.sum())
    # With one of the two measured, that one decides alone.
    if not total_seconds:
        memory_weight = 1.0
    elif not total_memory:
        memory_weight = 0.0
    cost = np.zeros(len(memory))
    if total_memory:
        cost = cost + memory_weight * memory / total_memory
    seconds_share = (1.0 - memory_weight) / total_seconds if total_seconds else 0.0
    return cost + seconds_share * seconds, seconds_share


def _chain(units: Sequence[CostNode]) -> Iterable[Value]:
    """Yield the values of a chain: each unit uses the output of the one before, with a gradient of the same size."""
    for before, unit in pairwise(units):
        size = unit.input_bytes
        yield Value(source=before.path, users=(unit.path,), forward_bytes=size, backward_bytes=size)


def _flows(tree: CostTree, values: Iterable[Value], group_of: dict[str, int]) -> tuple[Flow, ...]:
    """Return the values as flows between groups [3]; values with the same ends are added up to one flow."""
    seconds: dict[tuple[int, tuple[int, ...]], float] = {}
    for value in values:
        for path in (value.source, *value.users):
            if path not in group_of:
                raise ParallelError(f"the cost tree has a value between modules, and no module {path!r}")
        source = group_of[value.source]
        users = tuple(sorted({group_of[path] for path in value.users} - {source}))
        seconds_each = tree.link.transfer_seconds(value.forward_bytes, value.backward_bytes)
        # A value within one group never moves, and one without bytes takes no time.
        if users and seconds_each:
            seconds[source, users] = seconds.get((source, users), 0.0) + seconds_each
    return tuple(Flow(source, users, duration) for (source, users), duration in seconds.items())
