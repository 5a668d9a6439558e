"""Improves a split two partitions at a time: divides all their groups again between the two, and leaves the others.

Single moves and swaps (search.py) cannot take a run of groups across a costly value; a division can. It is dynamic
programming over the two partitions' groups in call order. The two partitions are side 0 and side 1:

    state     the sides on which the ends of each open flow are; a flow is open between its first and its last end
    column    the cost of side 0 so far, in cells: whole fractions of the limit
    entry     the least cost of side 1

Costs are rounded to cells, so the division is nearly the best. It is weighed exactly before it is taken. The limit
counts steps of the tables rather than seconds, so that every machine finds the same split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from herringbone_parallel.core.partition.problem import Floats, Problem, weigh

# Steps of all tables: they take about a third of a second.
MAX_STEPS = 40_000
# The time of the other rungs of the ladder for each group, in such steps, so that all rungs together stay within a
# second.
STEPS_OF_A_GROUP = 30
# The most that one side may cost, in cells.
CELLS = 500
# Flows open at once. States grow exponentially with them, so the cheapest flows beyond it are ignored.
MAX_OPEN_FLOWS = 5
# A cost must be lower by more than rounding.
TOLERANCE = 1e-12


def redivide_pairs(
    problem: Problem,
    labels: list[int],
    partitions: int,
    memory_cap: float | None = None,
    max_steps: int = MAX_STEPS,
    enough: float = 0.0,
) -> list[int]:
    """Return a split that is no worse; `labels` must keep within `memory_cap` bytes, and so does the result.

    Iterated local search: after a first descent, a random run of groups moves to a random partition, and another
    descent follows, until the steps reach `max_steps`, or the greatest cost of a partition is at most `enough`.
    """
    # A fixed seed, because the same tree must give the same split in every process.
    generator = np.random.default_rng(0)
    pairs = Pairs(problem, partitions, memory_cap)
    pairs.steps = STEPS_OF_A_GROUP * problem.size
    best = pairs.descend(labels, max_steps, enough)
    rank = weigh(problem, best, partitions).rank
    while pairs.steps < max_steps and rank[0] > enough:
        start = int(generator.integers(problem.size))
        end = min(start + 1 + int(generator.integers(1 + problem.size // (2 * partitions))), problem.size)
        # A kick moves at most about half of a partition's groups, so that most of the split survives.
        kicked = list(best)
        kicked[start:end] = [int(generator.integers(partitions))] * (end - start)
        # Weighing a split takes as long as about a tenth of a step per group.
        pairs.steps += problem.size // 10
        loads = weigh(problem, kicked, partitions)
        if len(set(kicked)) < partitions or (memory_cap is not None and loads.memory.max() > memory_cap):
            continue
        descended = pairs.descend(kicked, max_steps, enough)
        new_rank = weigh(problem, descended, partitions).rank
        if new_rank < rank:
            best, rank = descended, new_rank
    return best


class _Ends(NamedTuple):
    """The sides of an open flow's ends so far: the source's (None if not placed yet, or elsewhere), and the users'.

    `users[side]` is True if a user is on that side.
    """

    source: int | None = None
    users: tuple[bool, bool] = (False, False)


class _Role(IntEnum):
    """The role of a group in a flow. A REMOTE_USER uses a value whose source is on a third partition."""

    NONE = 0
    SOURCE = 1
    USER = 2
    REMOTE_USER = 3


class _Flow(NamedTuple):
    """A flow with several ends among the groups, by position; `source` is None if it is on a third partition."""

    source: int | None
    ends: tuple[int, ...]
    cost: float

    def role(self, group: int) -> _Role:
        if group not in self.ends:
            return _Role.NONE
        if self.source is None:
            return _Role.REMOTE_USER
        return _Role.SOURCE if group == self.source else _Role.USER


class _Step(NamedTuple):
    """From state `before` to `after` by putting the group on `side`; each side pays for some of the open flows.

    `paid` has the slots of these flows, for side 0 and for side 1.
    """

    before: int
    after: int
    side: int
    paid: tuple[tuple[int, ...], tuple[int, ...]]


class _Shift(NamedTuple):
    """A step with its costs: in cells for side 0, exact for side 1."""

    step: _Step
    cells: int
    cost: float


class Pairs:
    """Divides pairs of partitions again; `steps` counts the work done.

    labels = Pairs(problem, partitions=4).descend(labels, max_steps=50_000)
    """

    def __init__(self, problem: Problem, partitions: int, memory_cap: float | None = None) -> None:
        self.steps = 0
        self._problem, self._partitions = problem, partitions
        self._cap = np.inf if memory_cap is None else memory_cap

    def descend(self, labels: Sequence[int], max_steps: int, enough: float = 0.0) -> list[int]:
        """Return a split whose costs, sorted with the greatest first, are no greater; `labels` must keep the cap.

        The descent ends when no pair can be divided better, when `steps` reaches `max_steps`, or when no cost is above
        `enough`.
        """
        best, costs = list(labels), weigh(self._problem, labels, self._partitions).cost
        tried: set[frozenset[int]] = set()
        while self.steps < max_steps and costs.max() > enough:
            # Pairs with the costliest partition first; a stable sort, so that ties are the same everywhere.
            order = np.argsort(-costs, kind="stable").tolist()
            pair = next((pair for pair in combinations(order, 2) if frozenset(pair) not in tried), None)
            if pair is None:
                break
            divided = self._divided(best, pair, float(costs[pair[0]]))
            loads = weigh(self._problem, divided, self._partitions)
            fits = len(set(divided)) == self._partitions and float(loads.memory.max()) <= self._cap
            if fits and _less(loads.cost, costs):
                best, costs = divided, loads.cost
                # The other pairs of these two partitions have changed, so they are worth another try.
                tried = {other for other in tried if not other & set(pair)}
            tried.add(frozenset(pair))
        return best

    def _divided(self, labels: Sequence[int], pair: tuple[int, int], limit: float) -> list[int]:
        """Return the labels with the groups of two partitions divided so that the greater of their costs is least.

        `limit` is the greater cost now; no better division has a side that costs more.
        """
        groups = [group for group, label in enumerate(labels) if label in pair]
        costs, flows = _inside(self._problem, labels, groups)
        cell = limit / CELLS
        # Round running sums rather than single costs, so that errors do not add up along a run.
        cells = np.diff(np.rint(np.cumsum(np.concatenate([[0.0], costs])) / cell)).astype(int).tolist()
        tables = [np.full((1, CELLS + 1), np.inf)]
        # Before the first group neither side has cost, and no flow is open.
        tables[0][0, 0] = 0.0
        chain: list[list[_Shift]] = []
        for group, (count, steps, open_flows) in enumerate(_levels(len(groups), flows)):
            before, after = tables[-1], np.full((count, CELLS + 1), np.inf)
            flow_cells = [round(flows[flow].cost / cell) for flow in open_flows]
            shifts = []
            for step in steps:
                own_cells, other_cost = (cells[group], 0.0) if step.side == 0 else (0, float(costs[group]))
                own_cells += sum(flow_cells[slot] for slot in step.paid[0])
                other_cost += math.fsum(flows[open_flows[slot]].cost for slot in step.paid[1])
                if own_cells <= CELLS:
                    shifts.append(_Shift(step, own_cells, other_cost))
                    target = after[step.after, own_cells:]
                    np.minimum(target, before[step.before, : CELLS + 1 - own_cells] + other_cost, out=target)
            self.steps += len(steps)
            tables.append(after)
            chain.append(shifts)
        # No flow is open after the last group, so the last table has one state.
        greater = np.maximum(tables[-1][0], cell * np.arange(CELLS + 1))
        column = int(greater.argmin())
        divided = list(labels)
        if np.isfinite(greater[column]):
            for group, side in zip(groups, _sides(tables, chain, column), strict=True):
                divided[group] = pair[side]
        return divided


def _less(costs: Floats, others: Floats) -> bool:
    """Return True if the greatest cost that differs is less: the lexicographic order of sorted costs."""
    difference = np.sort(costs)[::-1] - np.sort(others)[::-1]
    differs = np.flatnonzero(np.abs(difference) > TOLERANCE)
    return bool(len(differs)) and bool(difference[differs[0]] < 0)


def _sides(tables: Sequence[Floats], chain: Sequence[Sequence[_Shift]], column: int) -> list[int]:
    """Return the side of each group on the way to `column` of the last table."""
    sides, state = [], 0
    for index in reversed(range(len(chain))):
        entry, before = tables[index + 1][state, column], tables[index]
        for step, cells, cost in chain[index]:
            # Exact equality is safe: the table holds the result of this very addition.
            if step.after == state and cells <= column and before[step.before, column - cells] + cost == entry:
                sides.append(step.side)
                state, column = step.before, column - cells
                break
    return sides[::-1]


def _inside(problem: Problem, labels: Sequence[int], groups: Sequence[int]) -> tuple[Floats, list[_Flow]]:
    """Return the cost of each group on either side, and the flows between the groups, by position in `groups`."""
    position = {group: index for index, group in enumerate(groups)}
    costs = problem.cost[list(groups)]
    flows = []
    # Without a price for seconds, flows cost nothing and need no state.
    for flow in problem.flows if problem.seconds_share else ():
        cost = problem.seconds_share * flow.seconds
        users = [position[user] for user in flow.users if user in position]
        source = position.get(flow.source)
        if source is not None:
            # Users on third partitions get the value from either side, so their cost goes with the source.
            costs[source] += cost * len({labels[user] for user in flow.users if user not in position})
            if users:
                flows.append(_Flow(source, tuple(sorted((source, *users))), cost))
        elif len(users) == 1:
            # A single user of a remote value pays on either side.
            costs[users[0]] += cost
        elif users:
            flows.append(_Flow(None, tuple(users), cost))
    return costs, _narrowed(len(groups), flows)


def _narrowed(size: int, flows: Sequence[_Flow]) -> list[_Flow]:
    """Return the costliest flows of which never more than `MAX_OPEN_FLOWS` are open at once."""
    open_flows = np.zeros(size, int)
    kept = []
    for flow in sorted(flows, key=lambda flow: -flow.cost):
        between = slice(flow.ends[0], flow.ends[-1])
        if open_flows[between].max() < MAX_OPEN_FLOWS:
            open_flows[between] += 1
            kept.append(flow)
    return kept


def _levels(size: int, flows: Sequence[_Flow]) -> Iterator[tuple[int, tuple[_Step, ...], list[int]]]:
    """Yield for each group the number of states after it, the steps to them, and the flows of the steps' slots."""
    begins: list[list[int]] = [[] for _ in range(size)]
    for number, flow in enumerate(flows):
        begins[flow.ends[0]].append(number)
    states: tuple[tuple[_Ends, ...], ...] = ((),)
    open_flows: list[int] = []
    for group in range(size):
        open_flows = open_flows + begins[group]
        roles = tuple(flows[flow].role(group) for flow in open_flows)
        stays = tuple(flows[flow].ends[-1] > group for flow in open_flows)
        states, steps = _level(states, roles, stays)
        yield len(states), steps, open_flows
        open_flows = [flow for flow, stay in zip(open_flows, stays, strict=True) if stay]


@lru_cache(maxsize=4_096)
def _level(
    states: tuple[tuple[_Ends, ...], ...], roles: tuple[_Role, ...], stays: tuple[bool, ...]
) -> tuple[tuple[tuple[_Ends, ...], ...], tuple[_Step, ...]]:
    """Return the states after a group that has these `roles` in the open flows, and the steps to them.

    Flows that begin at the group come last and are not in the states before it. The result depends on the structure
    alone, and a model repeats its structure, so the cache answers most calls.
    """
    numbers: dict[tuple[_Ends, ...], int] = {}
    steps = []
    for number, state in enumerate(states):
        begun = (_Ends(),) * (len(roles) - len(state))
        for side in (0, 1):
            paid: tuple[list[int], list[int]] = ([], [])
            after = []
            for slot, (ends, role) in enumerate(zip((*state, *begun), roles, strict=True)):
                now, payers = _place_end(ends, role, side)
                for payer in payers:
                    paid[payer].append(slot)
                if stays[slot]:
                    after.append(now)
            number_after = numbers.setdefault(tuple(after), len(numbers))
            steps.append(_Step(number, number_after, side, (tuple(paid[0]), tuple(paid[1]))))
    return tuple(numbers), tuple(steps)


def _place_end(ends: _Ends, role: _Role, side: int) -> tuple[_Ends, tuple[int, ...]]:
    """Return a flow's ends after one more is on `side`, and the sides that pay for that."""
    source, users = ends
    if role is _Role.SOURCE:
        # A user on the source's side pays nothing, so the state need not remember it: fewer states.
        across = users[1 - side]
        return _Ends(side, (across and side == 1, across and side == 0)), (0, 1) if across else ()
    if role is _Role.NONE or users[side] or source == side:
        return ends, ()
    now = _Ends(source, (users[0] or side == 0, users[1] or side == 1))
    if role is _Role.REMOTE_USER:
        return now, (side,)
    # A user before its source pays when the source is placed; until then its side is not known to differ.
    return now, () if source is None else (0, 1)
