"""The partition problem as numbers: groups of modules that cannot be separated, and the values between them.

A cost tree becomes a problem in three moves.

[1] A module with parameters of its own is a unit. One without runs where its inputs are, so its costs go to the unit
    called before it; a container's own operations finish its result, so they go to the last unit inside it.
[2] Units that share a parameter live together: they form one group (union-find), and count the parameter once.
[3] Values between modules become values between groups.

Cost of a partition k, a share of the whole model's (Karakus et al., arXiv 2111.05972, for the first two terms):

    cost(k) = w * memory(k) / sum(memory) + (1 - w) * (seconds(k) + communication(k)) / sum(seconds)

with `w` the `memory_weight`. `communication(k)` is the time of every message that k sends or receives: a rank is busy
while it copies, so both ends pay (the model of Archer et al., ICML 2024). A value moves once to each partition that
uses it. In a full pipeline a microbatch leaves every max(seconds + communication), so that with w = 0 the greatest
cost is the step time per microbatch, as a share of the time of one device.
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
    """A value between groups: made by `source`, used by `users` (sorted, without the source)."""

    source: int
    users: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Groups in the order of their first call, and the flows between them.

    `cost` is each group's share without communication; `seconds_share` turns seconds of communication into cost.
    `memory` is in bytes, `seconds` in seconds. `scattered` are the groups with other groups between their members.
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
    """What each partition carries: its cost (communication included), bytes, seconds, and seconds of communication."""

    cost: Floats
    memory: Floats
    seconds: Floats
    communication: Floats

    @property
    def rank(self) -> tuple[float, float]:
        """The order of splits: the greatest cost first, then all communication."""
        return float(self.cost.max()), float(self.communication.sum())


def weigh(problem: Problem, labels: Sequence[int], partitions: int) -> Loads:
    """Return what each partition carries when group g is on partition `labels[g]`."""
    where = np.asarray(labels)
    communication = np.zeros(partitions)
    for flow in problem.flows:
        home = labels[flow.source]
        for partition in {labels[user] for user in flow.users} - {home}:
            communication[partition] += flow.seconds
            communication[home] += flow.seconds
    cost = np.bincount(where, problem.cost, partitions) + problem.seconds_share * communication
    return Loads(
        cost,
        np.bincount(where, problem.memory, partitions).astype(np.float64),
        np.bincount(where, problem.seconds, partitions).astype(np.float64),
        communication,
    )


def revisits(problem: Problem, labels: Sequence[int]) -> bool:
    """Say whether the call order comes back to a partition it has left; scattered groups are left out, as they must."""
    order = [label for group, label in enumerate(labels) if group not in problem.scattered]
    return sum(before != label for before, label in pairwise(order)) >= len(set(order))


def make_problem(tree: CostTree, memory_weight: float) -> Problem:
    """Return the problem that a cost tree poses.

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
        parameters[group].update(unit.parameters)
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
    """Return the units in call order, and for every module the unit that carries its costs."""
    units: list[CostNode] = []
    unit_of: dict[str, int] = {}
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
    """Return the group of each unit; groups are numbered by their first unit."""
    root = list(range(len(units)))

    def find(unit: int) -> int:
        while root[unit] != unit:
            root[unit] = root[root[unit]]
            unit = root[unit]
        return unit

    first: dict[int, int] = {}
    for index, unit in enumerate(units):
        for identity in unit.parameters:
            one, other = sorted((find(first.setdefault(identity, index)), find(index)))
            root[other] = one
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(unit), len(numbers)) for unit in range(len(units))]


def _scattered(group_of_unit: Sequence[int]) -> tuple[int, ...]:
    positions: dict[int, list[int]] = {}
    for position, group in enumerate(group_of_unit):
        positions.setdefault(group, []).append(position)
    return tuple(group for group, at in positions.items() if at[-1] - at[0] >= len(at))


def _shares(memory: Floats, seconds: Floats, memory_weight: float) -> tuple[Floats, float]:
    """Return each group's cost, and the cost of a second of communication. What was not measured weighs nothing."""
    total_memory, total_seconds = float(memory.sum()), float(seconds.sum())
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
    for before, unit in pairwise(units):
        moved = unit.input_bytes
        yield Value(source=before.path, users=(unit.path,), forward_bytes=moved, backward_bytes=moved)


def _flows(tree: CostTree, values: Iterable[Value], group_of: dict[str, int]) -> tuple[Flow, ...]:
    """Return the values as flows between groups; those of the same ends are added up."""
    seconds: dict[tuple[int, tuple[int, ...]], float] = {}
    for value in values:
        for path in (value.source, *value.users):
            if path not in group_of:
                raise ParallelError(f"the cost tree has a value between modules, and no module {path!r}")
        source = group_of[value.source]
        users = tuple(sorted({group_of[path] for path in value.users} - {source}))
        took = tree.link.transfer_seconds(value.forward_bytes, value.backward_bytes)
        if users and took:
            seconds[source, users] = seconds.get((source, users), 0.0) + took
    return tuple(Flow(source, users, took) for (source, users), took in seconds.items())
