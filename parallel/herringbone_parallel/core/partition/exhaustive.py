"""Finds the best of all splits of a model with few groups: branch and bound, breadth first, on arrays.

Level by level, every promising placement of the first groups is extended by the next group on every partition. A
placement is dropped when it cannot beat the best split known, because a partition or the average already costs as
much. Partitions are numbered in the order in which they get their first group, so that each split occurs once.
Communication counts as soon as a value's source and user are both placed. It only grows with further groups, so a
placement's cost is a lower bound of every split that extends it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.partition.problem import Floats, Problem

# Placements of one level, beyond which the search gives up: about a second and 100 MB.
MAX_PLACEMENTS = 400_000
# A split must be better by more than rounding.
TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class ExhaustiveResult:
    """The result of a complete search: `labels` of a split better than the known one, or None if there is none."""

    labels: list[int] | None


@dataclass(frozen=True, slots=True)
class _Placements:
    """Placements of the first groups, one per row.

    `labels` has shape (placements, groups placed), `cost` and `memory` (placements, partitions).
    """

    labels: NDArray[np.int8]
    cost: Floats
    memory: Floats

    def kept(self, rows: NDArray[np.bool_]) -> _Placements:
        return _Placements(self.labels[rows], self.cost[rows], self.memory[rows])


def search_all_splits(
    problem: Problem, partitions: int, known: float, memory_cap: float | None = None
) -> ExhaustiveResult | None:
    """Search all splits for one whose greatest cost is below `known`; return None when there are too many placements.

    >>> from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link
    >>> from herringbone_parallel.core.partition.problem import make_problem
    >>> layers = tuple(CostNode(path=str(n), parameters={n: size}) for n, size in enumerate([50, 90, 40]))
    >>> tree = CostTree(root=CostNode(path="", children=layers), link=Link(bytes_per_second=1e9))
    >>> search_all_splits(make_problem(tree, memory_weight=1.0), 2, known=130 / 180).labels
    [1, 0, 1]
    """
    order = _order(problem)
    limit = known - TOLERANCE
    cap = np.inf if memory_cap is None else memory_cap
    alive = _Placements(np.zeros((1, 0), np.int8), np.zeros((1, partitions)), np.zeros((1, partitions)))
    # The cost of the groups not placed yet, without their communication.
    remaining = float(problem.cost.sum())
    for depth, group in enumerate(order):
        remaining -= float(problem.cost[group])
        groups_left = problem.size - depth - 1
        extended = [
            child
            for target in range(min(depth + 1, partitions))
            for child in [_extended(problem, order[:depth], group, target, alive)]
        ]
        # In order: no partition costs too much, the average does not, the cap holds, and enough groups are left to open
        # every partition.
        kept = [
            child.kept(
                (child.cost.max(axis=1) < limit)
                & ((child.cost.sum(axis=1) + remaining) / partitions < limit)
                & (child.memory.max(axis=1) <= cap)
                & (child.labels.max(axis=1, initial=-1) + 1 + groups_left >= partitions)
            )
            for child in extended
        ]
        alive = _Placements(
            np.concatenate([child.labels for child in kept]),
            np.concatenate([child.cost for child in kept]),
            np.concatenate([child.memory for child in kept]),
        )
        if len(alive.labels) > MAX_PLACEMENTS:
            return None
        if not len(alive.labels):
            # Nothing can beat the known split.
            return ExhaustiveResult(None)
    # Of the splits left, the one with the least greatest cost; all of them beat the known one.
    best = alive.labels[np.argmin(alive.cost.max(axis=1))]
    labels = [0] * problem.size
    for group, label in zip(order, best.tolist(), strict=True):
        labels[group] = label
    return ExhaustiveResult(labels)


def _order(problem: Problem) -> list[int]:
    """Return the groups, the costliest first, communication included."""
    # Costly groups exclude most placements at the first levels, where placements are few.
    weight = problem.cost.copy()
    for flow in problem.flows:
        for group in (flow.source, *flow.users):
            weight[group] += problem.seconds_share * flow.seconds
    return [int(group) for group in np.argsort(-weight, kind="stable")]


def _extended(problem: Problem, placed: list[int], group: int, target: int, alive: _Placements) -> _Placements:
    """Return the placements with one more group on `target`, where `target` is open or the next to open."""
    legal = alive.labels.max(axis=1, initial=-1) + 1 >= target
    alive = alive.kept(legal)
    # A flow costs its source and each partition that receives it, once. Add what this group makes certain.
    cost, memory = alive.cost.copy(), alive.memory.copy()
    cost[:, target] += problem.cost[group]
    memory[:, target] += problem.memory[group]
    column = {other: index for index, other in enumerate(placed)}
    partitions = cost.shape[1]
    rows = np.arange(len(cost))
    for flow in problem.flows:
        users = [alive.labels[:, column[user]] for user in flow.users if user in column]
        weight = problem.seconds_share * flow.seconds
        if flow.source == group:
            for other in range(partitions):
                if other != target and users:
                    sent = weight * np.any([user == other for user in users], axis=0)
                    cost[:, other] += sent
                    cost[:, target] += sent
        elif group in flow.users and flow.source in column:
            source = alive.labels[:, column[flow.source]]
            # The flow is new to `target` unless the source or an earlier user is there.
            new = (
                (source != target) & ~np.any([user == target for user in users], axis=0)
                if users
                else (source != target)
            )
            cost[:, target] += weight * new
            cost[rows, source] += weight * new
    labels = np.concatenate([alive.labels, np.full((len(cost), 1), target, np.int8)], axis=1)
    return _Placements(labels, cost, memory)
