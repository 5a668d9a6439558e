"""Finds the best split into contiguous runs of the call order: dynamic programming, exact with communication.

    free groups in call order   0 1 2 | 3 4 | 5 6 7        partition k holds the run [i, j)
    pinned groups               embed = head on host h      ... and, if k is a host, its pinned groups

A group whose members are scattered over the order (an embedding tied to the head) fits no run. It is pinned to a
partition, its host, and every host is tried. For one choice of hosts the greatest cost of the first k runs over the
first j groups is

    best[k][j] = min over i of max(best[k-1][i], cost_k[i, j])

in O(partitions x groups^2) on arrays. A second pass finds the least total communication at that greatest cost. A value
used on several other partitions counts once at its source here, because a single run does not show its receivers.
Without such values the result is the exact optimum among contiguous splits, by (greatest cost, communication).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from herringbone_parallel.core.partition.problem import Floats, Flow, Problem, weigh

# Possible cuts. Models with more groups have neighbours joined into runs of about equal cost.
MAX_POSITIONS = 1_024
# Cells of all tables for the hosts of pinned groups: they take about half a second.
MAX_CELLS = 100_000_000
# Costs of one split that were summed in different orders differ by rounding.
TOLERANCE = 1e-12


def split_contiguous(problem: Problem, partitions: int, memory_cap: float | None = None) -> list[int] | None:
    """Return the partition of each group, or None when no contiguous split keeps within `memory_cap` bytes.

    >>> from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link
    >>> from herringbone_parallel.core.partition.problem import make_problem
    >>> layers = tuple(CostNode(path=str(n), parameters={n: size}) for n, size in enumerate([60, 40, 40]))
    >>> tree = CostTree(root=CostNode(path="", children=layers), link=Link(bytes_per_second=1e9))
    >>> split_contiguous(make_problem(tree, memory_weight=1.0), 2)
    [0, 1, 1]
    """
    order = _Order.of(problem, partitions)
    # A table depends only on the set of groups pinned to the partition, so choices of hosts share tables.
    tables: dict[frozenset[int], _Tables] = {}
    rows_of: dict[tuple[int, ...], list[_Tables]] = {}
    for hosts in product(range(partitions), repeat=len(order.pinned)):
        rows_of[hosts] = rows = []
        for partition in range(partitions):
            pinned = frozenset(group for group, host in zip(order.pinned, hosts, strict=True) if host == partition)
            if pinned not in tables:
                tables[pinned] = _Tables.of(problem, order, pinned, memory_cap)
            rows.append(tables[pinned])
    limit_of = {hosts: _least_bottleneck(rows) for hosts, rows in rows_of.items()}
    limit = min(limit_of.values()) + TOLERANCE
    if not np.isfinite(limit):
        return None
    # The second pass: only runs within the limit, by communication alone.
    allowed = {id(table): table.within(limit) for table in tables.values()}
    splits = [
        order.labels(problem.size, hosts, _cuts([allowed[id(row)] for row in rows]))
        for hosts, rows in rows_of.items()
        if limit_of[hosts] <= limit
    ]
    return min(splits, key=lambda labels: weigh(problem, labels, partitions).rank)


@dataclass(frozen=True, slots=True)
class _Order:
    """The free groups as runs in call order, and the pinned groups."""

    runs: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, partitions: int) -> _Order:
        pinned: list[int] = []
        # Each pinned group multiplies the choices of hosts, so pin the costliest groups, as many as the limit allows.
        # The others stay in the order at the place of their first member.
        for group in sorted(problem.scattered, key=lambda group: -problem.cost[group]):
            cells = partitions ** (len(pinned) + 2) * min(problem.size, MAX_POSITIONS) ** 2
            if cells <= MAX_CELLS and problem.size - len(pinned) > partitions:
                pinned.append(group)
        free = [group for group in range(problem.size) if group not in pinned]
        return cls(tuple(_joined(problem, free, partitions)), tuple(pinned))

    def positions(self) -> dict[int, int]:
        return {group: position for position, run in enumerate(self.runs) for group in run}

    def labels(self, size: int, hosts: tuple[int, ...], starts: list[int]) -> list[int]:
        """Return the partition of each group when partition k's run starts at `starts[k]`."""
        labels = [0] * size
        for partition, (start, end) in enumerate(zip(starts, [*starts[1:], len(self.runs)], strict=True)):
            for run in self.runs[start:end]:
                for group in run:
                    labels[group] = partition
        for group, host in zip(self.pinned, hosts, strict=True):
            labels[group] = host
        return labels


def _joined(problem: Problem, free: list[int], partitions: int) -> Iterator[tuple[int, ...]]:
    """Yield the free groups one by one, or joined into about `MAX_POSITIONS` runs of equal cost."""
    if len(free) <= MAX_POSITIONS:
        yield from ((group,) for group in free)
        return
    step = float(problem.cost[free].sum()) / MAX_POSITIONS
    run: list[int] = []
    for remaining, group in zip(range(len(free), 0, -1), free, strict=True):
        run.append(group)
        # The last groups stay single, so that there are enough runs for all partitions.
        if problem.cost[run].sum() >= step or remaining <= partitions:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The cost (inf if not allowed) and the communication of every run [i, j), joined with some pinned groups.

    Both arrays have shape (runs + 1, runs + 1), indexed by the start and the end of the run.
    """

    cost: Floats
    communication: Floats

    @classmethod
    def of(cls, problem: Problem, order: _Order, pinned: frozenset[int], memory_cap: float | None) -> _Tables:
        communication = _communication(problem.flows, order, pinned)
        cost = _sums(problem.cost, order, pinned) + problem.seconds_share * communication
        count = len(order.runs)
        starts, ends = np.arange(count + 1)[:, None], np.arange(count + 1)[None, :]
        # A run may be empty only if a pinned group keeps the partition from being empty.
        cost[starts > ends if pinned else starts >= ends] = np.inf
        if memory_cap is not None:
            cost[_sums(problem.memory, order, pinned) > memory_cap] = np.inf
        return cls(cost, communication)

    def within(self, limit: float) -> Floats:
        """Return the communication of the runs that cost at most `limit`, and inf for the others."""
        return np.where(self.cost <= limit, self.communication, np.inf)


def _sums(amounts: Floats, order: _Order, pinned: frozenset[int]) -> Floats:
    """Return the sum of the amounts of every run [i, j) and of the pinned groups, from running sums."""
    prefix = np.concatenate([[0.0], np.cumsum([amounts[list(run)].sum() for run in order.runs])])
    sums: Floats = prefix[None, :] - prefix[:, None] + amounts[list(pinned)].sum()
    return sums


def _communication(flows: tuple[Flow, ...], order: _Order, pinned: frozenset[int]) -> Floats:
    """Return the seconds of communication of every run [i, j) joined with the pinned groups.

    A condition on a value, such as "its source is in the run", holds on rectangles of the (i, j) plane. Only the
    corners of each rectangle are written; two running sums then fill all rectangles at once, so a flow takes constant
    time per end instead of time in proportion to the area.
    """
    corners = np.zeros((len(order.runs) + 2, len(order.runs) + 2))
    position = order.positions()

    def add(first: int, last: int, end: int, seconds: float) -> None:
        """Add to all runs that start in [first, last] and end at `end` or later."""
        if first <= last:
            corners[first, end] += seconds
            corners[last + 1, end] -= seconds

    for flow in flows:
        users = sorted({position[user] for user in flow.users if user in position})
        user_inside = any(user in pinned for user in flow.users)
        # A user pinned to another partition: the value leaves whatever the run is.
        user_elsewhere = any(user not in position and user not in pinned for user in flow.users)
        if flow.source in position:
            source = position[flow.source]
            add(0, source, source + 1, flow.seconds)  # sent, unless all users are in the run
            if not user_elsewhere:
                add(0, min([source, *users]), max([source, *users]) + 1, -flow.seconds)
            if user_inside:  # received, unless the source is in the run
                add(0, len(order.runs), 0, flow.seconds)
                add(0, source, source + 1, -flow.seconds)
                continue
            for before, user in zip([-1, *users], users, strict=False):
                add(before + 1, user, user + 1, flow.seconds)
                add(before + 1, min(user, source), max(user, source) + 1, -flow.seconds)
        elif flow.source in pinned:  # sent, unless all users are in the run
            if user_elsewhere or users:
                add(0, len(order.runs), 0, flow.seconds)
            if users and not user_elsewhere:
                add(0, users[0], users[-1] + 1, -flow.seconds)
        elif user_inside:  # the source is on another partition, so the value is received in any case
            add(0, len(order.runs), 0, flow.seconds)
        else:  # received once, if the run has any user: counted at the first user in it
            for before, user in zip([-1, *users], users, strict=False):
                add(before + 1, user, user + 1, flow.seconds)
    return np.cumsum(np.cumsum(corners, axis=0), axis=1)[:-1, :-1]


def _least_bottleneck(rows: list[_Tables]) -> float:
    """Return the least greatest cost of runs that cover the order, one run per row: the recurrence of the module."""
    best = rows[0].cost[0]
    for row in rows[1:]:
        best = np.maximum(best[:, None], row.cost).min(axis=0)
    return float(best[-1])


def _cuts(allowed: list[Floats]) -> list[int]:
    """Return the start of each run so that total communication is least; one table per run, inf where not allowed.

    Among equals, later cuts win.
    """
    best = allowed[0][0]
    choices = []
    for communication in allowed[1:]:
        sums = best[:, None] + communication
        # argmin finds the first of equals, so on the reversed array it finds the last.
        choice = len(best) - 1 - np.argmin(sums[::-1], axis=0)
        choices.append(choice)
        best = sums[choice, np.arange(len(best))]
    starts = []
    end = len(best) - 1
    for choice in reversed(choices):
        end = int(choice[end])
        starts.append(end)
    return [0, *reversed(starts)]
