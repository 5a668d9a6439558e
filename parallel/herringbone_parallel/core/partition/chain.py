"""The best split in contiguous runs of the call order: dynamic programming, exact with communication.

    free groups in call order   0 1 2 | 3 4 | 5 6 7        partition k holds the run [i, j)
    pinned groups               embed = head on host h      ... and, if k is a host, its pinned groups

A group whose members are scattered over the order (an embedding tied to the head) fits no run: it is pinned, and every
host is tried. For one choice of hosts the greatest cost of the first k runs over the first j groups is

    best[k][j] = min over i of max(best[k-1][i], cost_k[i, j])

in O(partitions x groups^2) on arrays. A second pass finds, at that greatest cost, the least communication in total.
A value used on several other partitions counts once at its source here (its receivers are not known inside a run);
without such values the result is the exact optimum among contiguous splits, by (greatest cost, communication).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from herringbone_parallel.core.partition.problem import Floats, Flow, Problem, weigh

# Where cuts may lie. Beyond it, neighbours are joined into runs of about equal cost.
MAX_POSITIONS = 1_024
# Cells of all tables that trying hosts of pinned groups may fill: about half a second.
MAX_CELLS = 100_000_000
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
    tables: dict[frozenset[int], _Tables] = {}
    rows_of: dict[tuple[int, ...], list[_Tables]] = {}
    for hosts in product(range(partitions), repeat=len(order.pinned)):
        rows_of[hosts] = rows = []
        for partition in range(partitions):
            inside = frozenset(group for group, host in zip(order.pinned, hosts, strict=True) if host == partition)
            if inside not in tables:
                tables[inside] = _Tables.of(problem, order, inside, memory_cap)
            rows.append(tables[inside])
    limit_of = {hosts: _least_bottleneck(rows) for hosts, rows in rows_of.items()}
    limit = min(limit_of.values()) + TOLERANCE
    if not np.isfinite(limit):
        return None
    allowed = {id(table): table.within(limit) for table in tables.values()}
    splits = [
        order.labels(problem.size, hosts, _cuts([allowed[id(row)] for row in rows]))
        for hosts, rows in rows_of.items()
        if limit_of[hosts] <= limit
    ]
    return min(splits, key=lambda labels: weigh(problem, labels, partitions).rank)


@dataclass(frozen=True, slots=True)
class _Order:
    """The free groups, as runs in call order, and the pinned ones."""

    runs: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, partitions: int) -> _Order:
        pinned: list[int] = []
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
    """Yield the free groups one by one, or joined to at most about `MAX_POSITIONS` runs of equal cost."""
    if len(free) <= MAX_POSITIONS:
        yield from ((group,) for group in free)
        return
    step = float(problem.cost[free].sum()) / MAX_POSITIONS
    run: list[int] = []
    for left, group in zip(range(len(free), 0, -1), free, strict=True):
        run.append(group)
        if problem.cost[run].sum() >= step or left <= partitions:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


@dataclass(frozen=True, slots=True)
class _Tables:
    """For every run [i, j), with the pinned groups `inside`: cost (inf where not allowed) and communication."""

    cost: Floats
    communication: Floats

    @classmethod
    def of(cls, problem: Problem, order: _Order, inside: frozenset[int], memory_cap: float | None) -> _Tables:
        communication = _communication(problem.flows, order, inside)
        cost = _sums(problem.cost, order, inside) + problem.seconds_share * communication
        count = len(order.runs)
        starts, ends = np.arange(count + 1)[:, None], np.arange(count + 1)[None, :]
        # A run may be empty only where a pinned group keeps the partition from being so.
        cost[starts > ends if inside else starts >= ends] = np.inf
        if memory_cap is not None:
            cost[_sums(problem.memory, order, inside) > memory_cap] = np.inf
        return cls(cost, communication)

    def within(self, limit: float) -> Floats:
        """Return the communication of the runs that cost at most `limit`, inf for the others."""
        return np.where(self.cost <= limit, self.communication, np.inf)


def _sums(amounts: Floats, order: _Order, inside: frozenset[int]) -> Floats:
    prefix = np.concatenate([[0.0], np.cumsum([amounts[list(run)].sum() for run in order.runs])])
    sums: Floats = prefix[None, :] - prefix[:, None] + amounts[list(inside)].sum()
    return sums


def _communication(flows: tuple[Flow, ...], order: _Order, inside: frozenset[int]) -> Floats:
    """Return the seconds of communication of every run [i, j) joined with `inside`.

    Each condition on a value, such as "its source is in the run", holds on rectangles of the (i, j) plane; their
    corners are noted, and two running sums fill them.
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
        some_in = any(user in inside for user in flow.users)
        some_out = any(user not in position and user not in inside for user in flow.users)
        if flow.source in position:
            source = position[flow.source]
            add(0, source, source + 1, flow.seconds)  # sent, unless all users are in the run
            if not some_out:
                add(0, min([source, *users]), max([source, *users]) + 1, -flow.seconds)
            if some_in:  # received, unless the source is in the run
                add(0, len(order.runs), 0, flow.seconds)
                add(0, source, source + 1, -flow.seconds)
                continue
            for before, user in zip([-1, *users], users, strict=False):
                add(before + 1, user, user + 1, flow.seconds)
                add(before + 1, min(user, source), max(user, source) + 1, -flow.seconds)
        elif flow.source in inside:
            if some_out or users:
                add(0, len(order.runs), 0, flow.seconds)
            if users and not some_out:
                add(0, users[0], users[-1] + 1, -flow.seconds)
        elif some_in:
            add(0, len(order.runs), 0, flow.seconds)
        else:
            for before, user in zip([-1, *users], users, strict=False):
                add(before + 1, user, user + 1, flow.seconds)
    return np.cumsum(np.cumsum(corners, axis=0), axis=1)[:-1, :-1]


def _least_bottleneck(rows: list[_Tables]) -> float:
    """Return the least greatest cost of runs that cover the order, one run a row."""
    best = rows[0].cost[0]
    for row in rows[1:]:
        best = np.maximum(best[:, None], row.cost).min(axis=0)
    return float(best[-1])


def _cuts(allowed: list[Floats]) -> list[int]:
    """Return where each run starts so that communication is least in total; one table a run, inf where not allowed.

    Among equals, later cuts win: early ranks also keep more activations.
    """
    best = allowed[0][0]
    choices = []
    for communication in allowed[1:]:
        sums = best[:, None] + communication
        # argmin finds the first of equals; turned around, the last.
        choice = len(best) - 1 - np.argmin(sums[::-1], axis=0)
        choices.append(choice)
        best = sums[choice, np.arange(len(best))]
    starts = []
    end = len(best) - 1
    for choice in reversed(choices):
        end = int(choice[end])
        starts.append(end)
    return [0, *reversed(starts)]
