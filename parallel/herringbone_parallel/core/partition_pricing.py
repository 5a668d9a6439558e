"""The set of groups that is worth most among those that one partition can carry, every group having a price.

Dynamic programming over the groups in call order. What must be remembered of a set so far is its cost and, for each
flow that has begun and not ended, whether its groups are all in the set, all out, or both (the flow is cut, and the set
pays for it): few states, as few flows are under way at once. Costs are rounded down to cells of the limit, so that no
set that one partition can carry is missed; a few that are slightly too costly may come along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.partition_problem import Floats, Flow, Problem

# The limit in cells; the number near it that rounds the costs best is taken.
CELLS = 4_000
# Flows under way at once; beyond, the cheaper ones are taken for free, which lets more sets through.
MAX_UNDER_WAY = 6
_OUT, _IN, _CUT = range(3)


class _Move(NamedTuple):
    """From state `before` to `after`, with the group or without, cutting `cuts` (numbers of flows)."""

    before: int
    after: int
    taken: int
    cuts: tuple[int, ...]


class Pricing:
    """The sets that cost at most a limit; `best` finds the one worth most.

    members, worths = Pricing(problem, limit=0.26).best(prices)
    """

    def __init__(self, problem: Problem, limit: float) -> None:
        self._flows = _narrowed(problem)
        self._steps = _steps(problem.size, self._flows)
        self.cell, self._cells = cell, _ = _grid(problem.cost, limit)
        self.limit = self.cell * self._cells
        self._costs = _floors(problem.cost, cell)
        self._cuts = _floors(np.array([problem.seconds_share * flow.seconds for flow in self._flows]), cell)

    def best(self, prices: Floats) -> tuple[tuple[int, ...], Floats]:
        """Return the groups of the set with the greatest sum of prices, and the greatest sums of all lower limits.

        The sum at index n is that of sets that cost at most n times `cell`; the last one is that of the limit.
        """
        values = np.zeros((1, self._cells + 1))
        choices: list[NDArray[np.uint8]] = []
        for group, (count, moves) in enumerate(self._steps):
            found = np.full((count, self._cells + 1), -np.inf)
            choice = np.zeros((count, self._cells + 1), np.uint8)
            for number, move in enumerate(moves):
                cost = self._cost(group, move)
                if cost > self._cells:
                    continue
                worth = values[move.before, : self._cells + 1 - cost] + (prices[group] if move.taken else 0.0)
                better = worth > found[move.after, cost:]
                found[move.after, cost:][better] = worth[better]
                choice[move.after, cost:][better] = number
            values = found
            choices.append(choice)
        state = int(values[:, self._cells].argmax())
        return self._members(choices, state), values.max(axis=0)

    def _members(self, choices: Sequence[NDArray[np.uint8]], state: int) -> tuple[int, ...]:
        members, left = [], self._cells
        for group in reversed(range(len(self._steps))):
            move = self._steps[group][1][choices[group][state, left]]
            if move.taken:
                members.append(group)
            left -= self._cost(group, move)
            state = move.before
        return tuple(reversed(members))

    def _cost(self, group: int, move: _Move) -> int:
        return (self._costs[group] if move.taken else 0) + sum(self._cuts[flow] for flow in move.cuts)


def ends_of(flow: Flow) -> tuple[int, ...]:
    """Return the groups that make or use the flow, in call order."""
    return tuple(sorted((flow.source, *flow.users)))


def _narrowed(problem: Problem) -> list[Flow]:
    """Return the costliest flows of which never more than `MAX_UNDER_WAY` are under way."""
    under_way = np.zeros(problem.size, int)
    kept = []
    for flow in sorted(problem.flows if problem.seconds_share else (), key=lambda flow: -flow.seconds):
        first, *_, last = ends_of(flow)
        if under_way[first:last].max() < MAX_UNDER_WAY:
            under_way[first:last] += 1
            kept.append(flow)
    return kept


def _steps(size: int, flows: Sequence[Flow]) -> list[tuple[int, list[_Move]]]:
    """Return for each group how many states there are after it, and the moves that lead to them."""
    touching: list[list[int]] = [[] for _ in range(size)]
    for number, flow in enumerate(flows):
        for group in ends_of(flow):
            touching[group].append(number)
    last = [ends_of(flow)[-1] for flow in flows]
    steps: list[tuple[int, list[_Move]]] = []
    states: dict[tuple[int, ...], int] = {(): 0}
    under_way: list[int] = []
    for group in range(size):
        after_it = [flow for flow in sorted({*under_way, *touching[group]}) if last[flow] > group]
        numbers: dict[tuple[int, ...], int] = {}
        moves = []
        for state, number in states.items():
            for taken in (_OUT, _IN):
                now = dict(zip(under_way, state, strict=True))
                cuts = [flow for flow in touching[group] if now.get(flow, taken) not in (taken, _CUT)]
                now.update((flow, taken) for flow in touching[group] if flow not in now)
                now.update((flow, _CUT) for flow in cuts)
                after = numbers.setdefault(tuple(now[flow] for flow in after_it), len(numbers))
                moves.append(_Move(number, after, taken, tuple(cuts)))
        steps.append((len(numbers), moves))
        states, under_way = numbers, after_it
    return steps


def _grid(costs: Floats, limit: float) -> tuple[float, int]:
    """Return the size and number of the cells that round the costs best."""
    counts = range(CELLS * 3 // 4, CELLS + 1, CELLS // 400)
    lost = [float(costs.sum() - limit / count * sum(_floors(costs, limit / count))) for count in counts]
    count = counts[int(np.argmin(lost))]
    return limit / count, count


def _floors(costs: Floats, cell: float) -> list[int]:
    # A cost of whole cells may come out a hair above; rounding further down lets more sets through, never fewer.
    return [int(cells) for cells in np.floor(costs / cell * (1.0 - 1e-12))]
