"""Makes a split better two partitions at a time: all their groups are divided anew between the two, the others stay.

Single moves and swaps (partition_search) cannot take a run of groups across a costly value; this can. One division is
dynamic programming over the two partitions' groups in call order. What must be remembered of a division so far is what
one of them pays, in cells of the limit, and where the ends of each flow under way are; the table holds the least that
the other pays. Costs are rounded to cells, so that the division found is nearly the best, and is weighed exactly before
it is taken. Work is counted in steps of the tables, not in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from herringbone_parallel.core.partition.problem import Floats, Problem, weigh

# Steps of all tables: about a third of a second.
MAX_STEPS = 40_000
# What the other rungs of the ladder take for each group, in such steps; so that all of them keep within a second.
STEPS_OF_A_GROUP = 30
# What one partition may pay, in cells.
CELLS = 500
# Flows under way at once; the cheaper ones beyond are not looked at.
MAX_UNDER_WAY = 5
TOLERANCE = 1e-12


def redivide_pairs(problem: Problem, labels: list[int], partitions: int, memory_cap: float | None = None) -> list[int]:
    """Return a split that is no worse; `labels` must keep within `memory_cap` bytes, and so does the result.

    After a first descent, some neighbours in call order are put elsewhere, time and again, and descents follow.
    """
    generator = np.random.default_rng(0)
    pairs = Pairs(problem, partitions, memory_cap)
    pairs.steps = STEPS_OF_A_GROUP * problem.size
    best = pairs.descend(labels, MAX_STEPS)
    rank = weigh(problem, best, partitions).rank
    while pairs.steps < MAX_STEPS:
        start = int(generator.integers(problem.size))
        end = min(start + 1 + int(generator.integers(1 + problem.size // (2 * partitions))), problem.size)
        kicked = list(best)
        kicked[start:end] = [int(generator.integers(partitions))] * (end - start)
        # Weighing a split takes about as long as so many steps.
        pairs.steps += problem.size // 10
        loads = weigh(problem, kicked, partitions)
        if len(set(kicked)) < partitions or (memory_cap is not None and loads.memory.max() > memory_cap):
            continue
        found = pairs.descend(kicked, MAX_STEPS)
        reached = weigh(problem, found, partitions).rank
        if reached < rank:
            best, rank = found, reached
    return best


class _Ends(NamedTuple):
    """Where the ends of a flow met so far are: the source's side (None: not met, or elsewhere), the users' sides."""

    source: int | None = None
    users: tuple[bool, bool] = (False, False)


# What a group is to a flow.
_NOTHING, _SOURCE, _USER, _USER_OF_A_THIRD = range(4)


class _Flow(NamedTuple):
    """A flow with several ends among the groups; `source` is None when it is on a third partition."""

    source: int | None
    ends: tuple[int, ...]
    cost: float

    def role(self, group: int) -> int:
        if group not in self.ends:
            return _NOTHING
        if self.source is None:
            return _USER_OF_A_THIRD
        return _SOURCE if group == self.source else _USER


class _Step(NamedTuple):
    """From state `before` to `after` by putting the group on `side`; each side pays for some of the flows under way."""

    before: int
    after: int
    side: int
    paid: tuple[tuple[int, ...], tuple[int, ...]]


class _Shift(NamedTuple):
    """A step with its price: cells for side 0, and cost for side 1."""

    step: _Step
    cells: int
    cost: float


class Pairs:
    """Divides pairs of partitions anew; `steps` counts the work done.

    labels = Pairs(problem, partitions=4).descend(labels, max_steps=50_000)
    """

    def __init__(self, problem: Problem, partitions: int, memory_cap: float | None = None) -> None:
        self.steps = 0
        self._problem, self._partitions = problem, partitions
        self._cap = np.inf if memory_cap is None else memory_cap

    def descend(self, labels: Sequence[int], max_steps: int) -> list[int]:
        """Return a split whose costs, the greatest first, are no greater; `labels` must keep within the cap.

        It ends when no pair can be divided better, or `steps` is `max_steps`.
        """
        best, costs = list(labels), weigh(self._problem, labels, self._partitions).cost
        tried: set[frozenset[int]] = set()
        while self.steps < max_steps:
            order = np.argsort(-costs, kind="stable").tolist()
            pair = next((pair for pair in combinations(order, 2) if frozenset(pair) not in tried), None)
            if pair is None:
                break
            found = self._divided(best, pair, float(costs[pair[0]]))
            loads = weigh(self._problem, found, self._partitions)
            fits = len(set(found)) == self._partitions and float(loads.memory.max()) <= self._cap
            if fits and _less(loads.cost, costs):
                best, costs = found, loads.cost
                tried = {other for other in tried if not other & set(pair)}
            tried.add(frozenset(pair))
        return best

    def _divided(self, labels: Sequence[int], pair: tuple[int, int], limit: float) -> list[int]:
        """Return the labels with the groups of two partitions divided so that the greater of their costs is least."""
        groups = [group for group, label in enumerate(labels) if label in pair]
        costs, flows = _inside(self._problem, labels, groups)
        cell = limit / CELLS
        # Rounded sums rather than summed roundings: errors do not add up along a run.
        cells = np.diff(np.rint(np.cumsum(np.concatenate([[0.0], costs])) / cell)).astype(int).tolist()
        tables = [np.full((1, CELLS + 1), np.inf)]
        tables[0][0, 0] = 0.0
        chain: list[list[_Shift]] = []
        for group, (count, steps, under_way) in enumerate(_levels(len(groups), flows)):
            before, after = tables[-1], np.full((count, CELLS + 1), np.inf)
            flow_cells = [round(flows[flow].cost / cell) for flow in under_way]
            shifts = []
            for step in steps:
                mine, theirs = (cells[group], 0.0) if step.side == 0 else (0, float(costs[group]))
                mine += sum(flow_cells[slot] for slot in step.paid[0])
                theirs += sum(flows[under_way[slot]].cost for slot in step.paid[1])
                if mine <= CELLS:
                    shifts.append(_Shift(step, mine, theirs))
                    target = after[step.after, mine:]
                    np.minimum(target, before[step.before, : CELLS + 1 - mine] + theirs, out=target)
            self.steps += len(steps)
            tables.append(after)
            chain.append(shifts)
        greater = np.maximum(tables[-1][0], cell * np.arange(CELLS + 1))
        at = int(greater.argmin())
        divided = list(labels)
        if np.isfinite(greater[at]):
            for group, side in zip(groups, _sides(tables, chain, at), strict=True):
                divided[group] = pair[side]
        return divided


def _less(costs: Floats, others: Floats) -> bool:
    """Say whether the greatest cost that differs is less."""
    difference = np.sort(costs)[::-1] - np.sort(others)[::-1]
    differs = np.flatnonzero(np.abs(difference) > TOLERANCE)
    return bool(len(differs)) and bool(difference[differs[0]] < 0)


def _sides(tables: Sequence[Floats], chain: Sequence[Sequence[_Shift]], at: int) -> list[int]:
    """Return the side of each group on the way to cell `at` of the last table."""
    sides, state = [], 0
    for index in reversed(range(len(chain))):
        reached, before = tables[index + 1][state, at], tables[index]
        for step, cells, cost in chain[index]:
            if step.after == state and cells <= at and before[step.before, at - cells] + cost == reached:
                sides.append(step.side)
                state, at = step.before, at - cells
                break
    return sides[::-1]


def _inside(problem: Problem, labels: Sequence[int], groups: Sequence[int]) -> tuple[Floats, list[_Flow]]:
    """Return what each of the groups costs on either side, and the flows between them, by position in `groups`."""
    position = {group: index for index, group in enumerate(groups)}
    costs = problem.cost[list(groups)]
    flows = []
    for flow in problem.flows if problem.seconds_share else ():
        cost = problem.seconds_share * flow.seconds
        users = [position[user] for user in flow.users if user in position]
        source = position.get(flow.source)
        if source is not None:
            costs[source] += cost * len({labels[user] for user in flow.users if user not in position})
            if users:
                flows.append(_Flow(source, tuple(sorted((source, *users))), cost))
        elif len(users) == 1:
            costs[users[0]] += cost
        elif users:
            flows.append(_Flow(None, tuple(users), cost))
    return costs, _narrowed(len(groups), flows)


def _narrowed(size: int, flows: Sequence[_Flow]) -> list[_Flow]:
    """Return the costliest flows of which never more than `MAX_UNDER_WAY` are under way."""
    under_way = np.zeros(size, int)
    kept = []
    for flow in sorted(flows, key=lambda flow: -flow.cost):
        between = slice(flow.ends[0], flow.ends[-1])
        if under_way[between].max() < MAX_UNDER_WAY:
            under_way[between] += 1
            kept.append(flow)
    return kept


def _levels(size: int, flows: Sequence[_Flow]) -> Iterator[tuple[int, tuple[_Step, ...], list[int]]]:
    """Yield for each group how many states there are after it, the steps to them, and the flows that these speak of."""
    begins: list[list[int]] = [[] for _ in range(size)]
    for number, flow in enumerate(flows):
        begins[flow.ends[0]].append(number)
    states: tuple[tuple[_Ends, ...], ...] = ((),)
    under_way: list[int] = []
    for group in range(size):
        under_way = under_way + begins[group]
        roles = tuple(flows[flow].role(group) for flow in under_way)
        stays = tuple(flows[flow].ends[-1] > group for flow in under_way)
        states, steps = _level(states, roles, stays)
        yield len(states), steps, under_way
        under_way = [flow for flow, stay in zip(under_way, stays, strict=True) if stay]


@lru_cache(maxsize=4_096)
def _level(
    states: tuple[tuple[_Ends, ...], ...], roles: tuple[int, ...], stays: tuple[bool, ...]
) -> tuple[tuple[tuple[_Ends, ...], ...], tuple[_Step, ...]]:
    """Return the states after a group that is `roles` to the flows under way, and the steps there.

    Flows that begin at the group come last, and are not in the states before it. A model repeats itself: few levels
    differ.
    """
    numbers: dict[tuple[_Ends, ...], int] = {}
    steps = []
    for number, state in enumerate(states):
        begun = (_Ends(),) * (len(roles) - len(state))
        for side in (0, 1):
            paid: tuple[list[int], list[int]] = ([], [])
            after = []
            for slot, (ends, role) in enumerate(zip((*state, *begun), roles, strict=True)):
                now, payers = _met(ends, role, side)
                for payer in payers:
                    paid[payer].append(slot)
                if stays[slot]:
                    after.append(now)
            reached = numbers.setdefault(tuple(after), len(numbers))
            steps.append(_Step(number, reached, side, (tuple(paid[0]), tuple(paid[1]))))
    return tuple(numbers), tuple(steps)


def _met(ends: _Ends, role: int, side: int) -> tuple[_Ends, tuple[int, ...]]:
    """Return where a flow's ends are when one more is on `side`, and the sides that pay for that."""
    source, users = ends
    if role == _SOURCE:
        # Users beside the source are not told from none: neither pays.
        across = users[1 - side]
        return _Ends(side, (across and side == 1, across and side == 0)), (0, 1) if across else ()
    if role == _NOTHING or users[side] or source == side:
        return ends, ()
    now = _Ends(source, (users[0] or side == 0, users[1] or side == 1))
    if role == _USER_OF_A_THIRD:
        return now, (side,)
    return now, () if source is None else (0, 1)
