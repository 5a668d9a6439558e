"""Finds the sets of groups that one partition can carry with the greatest worth, when every group has a price.

Dynamic programming over the groups in call order. The state of a set so far is its cost and, for each open flow,
whether its groups are all in the set, all out of it, or both. In the last case the flow is cut, and the set pays for
it. A flow is open between its first and its last group; few are open at once, so there are few states.

Costs are rounded down to cells of the limit. So no set that one partition can carry is missed, and a few sets that are
slightly too costly are included. Tables from both ends give the best set through each group, and the best set that cuts
each flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from herringbone_parallel.core.partition.problem import Floats, Flow, Problem

# Cells of the limit, at most: of the numbers near it, the one with the least rounding is used.
CELLS = 2_000
# Flows open at once, and states in all. Beyond these, the cheapest flows cost nothing, which includes more sets.
MAX_OPEN_FLOWS = 12
MAX_STATES = 8_000
# The best set is computed for this many groups.
MAX_SETS = 120
_OUT, _IN, _CUT = range(3)


class _Move(NamedTuple):
    """From state `before` to `after` with or without the group; it costs `cells` and cuts the flows `cuts`."""

    before: int
    after: int
    taken: int
    cells: int
    cuts: tuple[int, ...]


class _Tie(NamedTuple):
    """Groups that a set pays to divide: the ends of a flow. Without a `flow`, a set may hold only one of the groups."""

    ends: tuple[int, ...]
    cost: float
    flow: int | None


@dataclass(frozen=True, slots=True)
class Worths:
    """The worths of sets.

    `within[n]` is the greatest worth of a set that costs at most n cells. `sets` has the best set through each of some
    groups with its worth, including the best of all. `cutting` has the greatest worth of a set that cuts a flow, by the
    flow's number, and inf where it is unknown.
    """

    within: Floats
    sets: dict[tuple[int, ...], float]
    cutting: Floats

    @property
    def best(self) -> float:
        return float(self.within[-1])


class Sets:
    """The sets that cost at most a limit and hold no pair of groups in `apart`.

    most = Sets(problem, limit=0.26).worths(prices).best
    """

    def __init__(self, problem: Problem, limit: float, apart: Iterable[tuple[int, int]] = ()) -> None:
        self._cells = _best_rounding(problem.cost, limit)
        self.cell = limit / self._cells
        ties = [_Tie(pair, 0.0, None) for pair in apart]
        for number, flow in enumerate(problem.flows if problem.seconds_share else ()):
            ties.append(_Tie(ends_of(flow), problem.seconds_share * flow.seconds, number))
        levels = None
        for most in range(MAX_OPEN_FLOWS, -1, -1):
            kept = _narrowed(problem.size, ties, most)
            levels = _levels(problem, kept, self.cell, self._cells)
            if levels is not None:
                break
        assert levels is not None, "the pairs that are apart take more states than the limit"
        self._levels = levels
        self._known = np.zeros(len(problem.flows), bool)
        self._known[[tie.flow for tie in kept if tie.flow is not None]] = True

    def worths(self, prices: Floats) -> Worths:
        """Return the worths of sets, when a set is worth the sum of its groups' prices."""
        forwards = [np.zeros((1, self._cells + 1))]
        for price, (count, moves) in zip(prices.tolist(), self._levels, strict=True):
            table = np.full((count, self._cells + 1), -np.inf)
            for before, after, taken, cells, _ in moves:
                _raise(table[after, cells:], forwards[-1][before], price if taken else 0.0)
            forwards.append(table)
        backwards = [np.zeros((1, self._cells + 1))]
        for index in reversed(range(len(self._levels))):
            table, price = np.full(forwards[index].shape, -np.inf), float(prices[index])
            for before, after, taken, cells, _ in self._levels[index][1]:
                _raise(table[before, cells:], backwards[-1][after], price if taken else 0.0)
            backwards.append(table)
        backwards.reverse()
        return self._through(prices, forwards, backwards)

    def _through(self, prices: Floats, forwards: list[Floats], backwards: list[Floats]) -> Worths:
        cutting = np.where(self._known, -np.inf, np.inf)
        best: list[tuple[float, int, _Move, int]] = []
        for index, (_, moves) in enumerate(self._levels):
            candidates = []
            for move in moves:
                if move.taken or move.cuts:
                    budget = self._cells - move.cells
                    # All ways to divide the remaining cells between the groups before and the groups after.
                    sums = forwards[index][move.before, : budget + 1] + backwards[index + 1][move.after, budget::-1]
                    at = int(sums.argmax())
                    worth = float(sums[at]) + (float(prices[index]) if move.taken else 0.0)
                    for flow in move.cuts:
                        cutting[flow] = max(cutting[flow], worth)
                    if move.taken and np.isfinite(worth):
                        candidates.append((worth, index, move, at))
            best += sorted(candidates, key=lambda one: -one[0])[:1]
        best.sort(key=lambda one: -one[0])
        sets = {}
        for worth, index, move, at in best[:: -(-len(best) // MAX_SETS) or 1]:
            members = self._earlier(prices, forwards, index, move.before, at)
            members += [index, *self._later(prices, backwards, index + 1, move.after, self._cells - move.cells - at)]
            sets[tuple(members)] = worth
        return Worths(forwards[-1][0], sets, cutting)

    def _earlier(self, prices: Floats, tables: list[Floats], index: int, state: int, cells: int) -> list[int]:
        """Return the groups before `index` of the best set in this state, for so many cells."""
        members: list[int] = []
        for level in reversed(range(index)):
            reached = tables[level + 1][state, cells]
            price = float(prices[level])
            for move in self._levels[level][1]:
                if move.after == state and move.cells <= cells:
                    gained = tables[level][move.before, cells - move.cells] + (price if move.taken else 0.0)
                    if gained == reached:
                        break
            else:
                raise AssertionError("an entry of a table has no origin")
            members += [level] * move.taken
            state, cells = move.before, cells - move.cells
        return members[::-1]

    def _later(self, prices: Floats, tables: list[Floats], index: int, state: int, cells: int) -> list[int]:
        """Return the groups from `index` on of the best set in this state, for so many cells."""
        members: list[int] = []
        for level in range(index, len(self._levels)):
            reached = tables[level][state, cells]
            price = float(prices[level])
            for move in self._levels[level][1]:
                if move.before == state and move.cells <= cells:
                    gained = tables[level + 1][move.after, cells - move.cells] + (price if move.taken else 0.0)
                    if gained == reached:
                        break
            else:
                raise AssertionError("an entry of a table has no origin")
            members += [level] * move.taken
            state, cells = move.after, cells - move.cells
        return members


def ends_of(flow: Flow) -> tuple[int, ...]:
    """Return the source and the users of a flow, in call order."""
    return tuple(sorted((flow.source, *flow.users)))


def _raise(table: Floats, origin: Floats, price: float) -> None:
    """Raise the entries of the table to those of the origin plus the price, where these are greater."""
    np.maximum(table, origin[: len(table)] + price, out=table)


def _best_rounding(costs: Floats, limit: float) -> int:
    """Return the number of cells that loses least when costs are rounded down."""
    counts = range(CELLS * 3 // 4, CELLS + 1, CELLS // 400)
    lost = [float(costs.sum() - limit / count * np.floor(costs / (limit / count)).sum()) for count in counts]
    return counts[int(np.argmin(lost))]


def _narrowed(size: int, ties: Sequence[_Tie], most: int) -> list[_Tie]:
    """Return the pairs that are apart, and the costliest flows of which never more than `most` are open at once."""
    open_flows = np.zeros(size, int)
    kept = []
    for tie in sorted(ties, key=lambda tie: -tie.cost):
        between = slice(tie.ends[0], tie.ends[-1])
        if tie.flow is None:
            kept.append(tie)
        elif open_flows[between].max() < most:
            open_flows[between] += 1
            kept.append(tie)
    return kept


def _levels(problem: Problem, ties: Sequence[_Tie], cell: float, most: int) -> list[tuple[int, list[_Move]]] | None:
    """Return for each group the number of states after it, and the moves to them that cost at most `most` cells.

    Returns None when there are too many states.
    """
    touching: list[list[int]] = [[] for _ in range(problem.size)]
    for number, tie in enumerate(ties):
        for group in tie.ends:
            touching[group].append(number)
    levels: list[tuple[int, list[_Move]]] = []
    total = 0
    states: dict[tuple[int, ...], int] = {(): 0}
    open_flows: list[int] = []
    for group, cost in enumerate(problem.cost.tolist()):
        after_it = [tie for tie in sorted({*open_flows, *touching[group]}) if ties[tie].ends[-1] > group]
        numbers: dict[tuple[int, ...], int] = {}
        moves = []
        for state, number in states.items():
            for taken in (_OUT, _IN):
                now = dict(zip(open_flows, state, strict=True))
                if taken and any(ties[tie].flow is None and now.get(tie) == _IN for tie in touching[group]):
                    continue
                cuts = [tie for tie in touching[group] if now.get(tie, taken) not in (taken, _CUT)]
                now.update((tie, taken) for tie in touching[group] if tie not in now)
                now.update((tie, _CUT) for tie in cuts)
                paid = (cost if taken else 0.0) + sum(ties[tie].cost for tie in cuts)
                # A quotient may be slightly above a whole number; rounding further down includes more sets, never
                # fewer.
                cells = int(paid / cell * (1.0 - 1e-12))
                if cells <= most:
                    after = numbers.setdefault(tuple(now[tie] for tie in after_it), len(numbers))
                    flows = tuple(flow for flow in (ties[tie].flow for tie in cuts) if flow is not None)
                    moves.append(_Move(number, after, taken, cells, flows))
        levels.append((len(numbers), moves))
        states, open_flows = numbers, after_it
        total += len(numbers)
        if total > MAX_STATES:
            return None
    return levels
