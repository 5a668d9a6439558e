"""What no split can beat, and sometimes a better split: branch and price, branch by branch shown to hold nothing.

[1] Prices. If no set of groups that costs at most T (its cuts included) is worth more than 1, and all groups together
    are worth more than P, then P partitions cannot carry them: every split's greatest cost is above T. Good prices are
    the duals of the linear program that covers the groups with fractions of sets; the sets come into it as they are
    found worth more than 1 (column generation: Dantzig and Wolfe 1960).
[2] Flows that cannot be cut. A cut flow is cut by two of the P sets at least. If P - 2 sets of the best and two of the
    best that cut it are worth less than all groups, no split within T cuts it: its groups become one block.
[3] Branches. Where fractions of sets get by with P, two blocks are put together in one branch and kept apart in the
    other (Ryan and Foster 1981). A branch is done when its prices say that it is empty, or it holds one split.

Counting (partition_bounds) sees averages only; this sees that each partition pays its own cuts, and the size of groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from benchmarks.partition.sets import Sets, Worths
from scipy.optimize import linprog
from scipy.sparse import csc_matrix

from herringbone_parallel.core.partition.problem import Floats, Flow, Problem, weigh

# Prices between the best so far and the program's newest, which swing: shares of the former.
_BLENDS = (0.7, 0.3, 0.0)
# A gap below it is closed, as far as this goes.
_CLOSE_ENOUGH = 1e-3
# How far below the known split the first limit is; far below it, more sets and flows come into question.
_FIRST_STEP = 0.0195
# Sets in the linear program, for each group; beyond, half of them are dropped.
_MAX_COLUMNS = 24
# The share of the time left that one limit gets.
_SHARE_OF_A_LIMIT = 0.5
# How many sets a group that no set covers counts as, in the linear program.
_UNCOVERED = 100.0
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Proven:
    """A lower bound on the greatest cost, and a split better than the one known if one was met."""

    bound: float
    labels: list[int] | None


@dataclass(frozen=True, slots=True)
class _Branch:
    """Splits in which groups of one block (they have the same number) are together, and some pairs of groups apart."""

    block: tuple[int, ...]
    apart: tuple[tuple[int, int], ...]
    prices: Floats
    whole: bool

    def joined(self, ends: Sequence[int], prices: Floats) -> _Branch:
        """Return the branch with these groups together."""
        blocks = {self.block[group] for group in ends}
        first = min(blocks)
        return replace(self, block=tuple(first if block in blocks else block for block in self.block), prices=prices)


def prove(
    problem: Problem,
    partitions: int,
    known: tuple[float, float],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Proven:
    """Work for about `seconds` on a problem whose bound and greatest cost are `known`; less when the gap is closed.

    `clock` says how time passes. A memory cap is not looked at; a bound without it
    holds with it.
    """
    deadline = clock() + seconds
    search = _Search(problem, partitions, known, clock)
    unproven, step = search.cost, _FIRST_STEP
    while unproven / search.bound - 1 > _CLOSE_ENOUGH and (left := deadline - clock()) > 0:
        limit = max((search.bound + unproven) / 2, (1 - step) * unproven)
        if search.empty(limit, deadline - (1 - _SHARE_OF_A_LIMIT) * left):
            search.bound = max(search.bound, limit)
        else:
            unproven, step = min(limit, search.cost), 2 * step
    return Proven(min(search.bound, search.cost), search.labels)


def _cover(columns: Iterable[Sequence[int]], size: int) -> tuple[float, Floats, Floats]:
    """Return the least number of (fractions of) sets that cover the groups, the fractions, and the groups' prices.

    What the sets cannot cover is counted dearly, group by group.
    """
    entries = [np.array(column) for column in columns] + [np.array([group]) for group in range(size)]
    starts = np.cumsum([0, *map(len, entries)])
    members = np.concatenate(entries)
    matrix = csc_matrix((np.ones(len(members)), members, starts), shape=(size, len(entries)))
    counts = np.ones(len(entries))
    counts[-size:] = _UNCOVERED
    answer = linprog(counts, A_eq=matrix, b_eq=np.ones(size), method="highs")
    return float(answer.fun), np.asarray(answer.x)[:-size], np.asarray(answer.eqlin.marginals)


class _Blocks:
    """A branch as a problem whose groups are the blocks."""

    def __init__(self, problem: Problem, branch: _Branch) -> None:
        numbers: dict[int, int] = {}
        self.number = [numbers.setdefault(block, len(numbers)) for block in branch.block]
        self.members: list[list[int]] = [[] for _ in numbers]
        for group, block in enumerate(self.number):
            self.members[block].append(group)
        seconds: dict[tuple[int, tuple[int, ...]], float] = {}
        for flow in problem.flows:
            source = self.number[flow.source]
            users = tuple(sorted({self.number[user] for user in flow.users} - {source}))
            if users:
                seconds[source, users] = seconds.get((source, users), 0.0) + flow.seconds
        self.problem = replace(
            problem,
            members=tuple(tuple(problem.members[group][0] for group in members) for members in self.members),
            cost=np.bincount(self.number, problem.cost).astype(np.float64),
            memory=np.bincount(self.number, problem.memory).astype(np.float64),
            seconds=np.bincount(self.number, problem.seconds).astype(np.float64),
            flows=tuple(Flow(source, users, took) for (source, users), took in seconds.items()),
        )
        self.apart = {self._pair(one, other) for one, other in branch.apart}
        self.prices: Floats = np.bincount(self.number, branch.prices).astype(np.float64)

    @property
    def size(self) -> int:
        return len(self.members)

    def _pair(self, one: int, other: int) -> tuple[int, int]:
        first, second = sorted((self.number[one], self.number[other]))
        return first, second

    def set_of(self, groups: Iterable[int]) -> tuple[int, ...] | None:
        """Return a set of groups as one of blocks; None when it is not, or holds a pair that is apart."""
        groups = list(groups)
        blocks = {self.number[group] for group in groups}
        whole = sum(len(self.members[block]) for block in blocks) == len(groups)
        legal = whole and not any(one in blocks and other in blocks for one, other in self.apart)
        return tuple(sorted(blocks)) if legal else None

    def groups_of(self, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(group for block in blocks for group in self.members[block]))

    def spread(self, prices: Floats) -> Floats:
        """Return prices of groups that add up to those of their blocks."""
        each = prices / np.array([len(members) for members in self.members])
        spread: Floats = each[self.number]
        return spread


class _Search:
    """What is known so far: the highest bound, the best split met (if better than the one known), the last sets met."""

    def __init__(
        self,
        problem: Problem,
        partitions: int,
        known: tuple[float, float],
        clock: Callable[[], float],
    ) -> None:
        self._problem, self._partitions = problem, partitions
        self._clock = clock
        self.bound, self.cost = known
        self.labels: list[int] | None = None
        self._met: dict[tuple[int, ...], None] = {}

    def empty(self, limit: float, deadline: float) -> bool:
        """Say whether it is proven that no split costs at most the limit; False is no proof of anything."""
        waiting = [_Branch(tuple(range(self._problem.size)), (), self._problem.cost, whole=True)]
        while waiting:
            branch: _Branch | None = waiting.pop()
            while branch is not None:
                if self._clock() > deadline or self.cost <= limit:
                    return False
                blocks = _Blocks(self._problem, branch)
                hopeless = blocks.size < self._partitions or float(blocks.problem.cost.max()) > limit
                if hopeless or any(one == other for one, other in blocks.apart):
                    break
                if blocks.size == self._partitions:
                    self._meet(blocks.number)
                    break
                look = _Look(branch, blocks, Sets(blocks.problem, limit, blocks.apart))
                branch = self._narrowed(look, deadline)
                self._remember(look)
                halves = self._halves(look) if branch is None and not look.empty else []
                if branch is None and not look.empty and not halves:
                    return False
                waiting += halves
        return self.cost > limit

    def _narrowed(self, look: _Look, deadline: float) -> _Branch | None:
        """Generate columns; return the branch with flows joined that cannot be cut, None when the look is done."""
        columns = look.columns
        columns.update((column, None) for met in self._met if (column := look.blocks.set_of(met)) is not None)
        value, prices, tries = 0.0, look.blocks.prices, [look.blocks.prices]
        while self._clock() < deadline:
            known = len(columns)
            for one in tries:
                worths = look.sets.worths(one)
                total = float(one.sum())
                if total > value * worths.best:
                    value, prices = total / worths.best, one / worths.best
                if look.branch.whole:
                    self._raise_bound(look.sets.cell, worths, total)
                if total > self._partitions * worths.best * (1 + _TOLERANCE):
                    look.empty = True
                    return None
                if uncut := look.uncut(worths, total, self._partitions):
                    return look.joined(uncut, prices)
                columns.update((column, None) for column in worths.sets)
            least, shares, newest = _cover(columns, look.blocks.size)
            if least <= self._partitions * (1 + _TOLERANCE):
                look.prices, look.shares = prices, _taken(columns, shares)
                return None
            if len(columns) == known and len(tries) > 1:
                return None
            _drop_poorest(columns, newest)
            tries = [blend * prices + (1 - blend) * newest for blend in _BLENDS]
        return None

    def _remember(self, look: _Look) -> None:
        """Keep the sets that the look ended with, for other branches; of those met, the oldest are forgotten."""
        for column in look.columns:
            groups = look.blocks.groups_of(column)
            self._met.pop(groups, None)
            self._met[groups] = None
        for groups in list(self._met)[: max(len(self._met) - 2 * _MAX_COLUMNS * self._problem.size, 0)]:
            del self._met[groups]

    def _raise_bound(self, cell: float, worths: Worths, total: float) -> None:
        """Learn which limit the prices prove too low: worths grow with it, so the last that P sets need more than."""
        proven = int(np.searchsorted(worths.within * self._partitions * (1 + _TOLERANCE), total))
        self.bound = max(self.bound, min(proven - 1, len(worths.within) - 1) * cell)

    def _halves(self, look: _Look) -> list[_Branch]:
        """Return the two halves of a branch, the likelier last; none when the look showed nothing to branch on."""
        fractional = any(share < 1 - 1e-6 for _, share in look.shares)
        if not fractional:
            labels = [0] * self._problem.size
            for partition, (column, _) in enumerate(look.shares):
                for group in look.blocks.groups_of(column):
                    labels[group] = partition
            self._meet(labels)
        pair = look.pair(fractional)
        if pair is None:
            return []
        prices = look.blocks.spread(look.prices)
        parted = replace(look.branch, apart=(*look.branch.apart, pair), prices=prices, whole=False)
        return [parted, replace(look.branch, whole=False).joined(pair, prices)]

    def _meet(self, labels: list[int]) -> None:
        """Keep the split if it is better."""
        if len(set(labels)) == self._partitions:
            cost = weigh(self._problem, labels, self._partitions).rank[0]
            if cost < self.cost:
                self.cost, self.labels = cost, labels


class _Look:
    """A branch under look, and what was found: that it is `empty`, or the `shares` of sets that cover its blocks."""

    def __init__(self, branch: _Branch, blocks: _Blocks, sets: Sets) -> None:
        self.branch, self.blocks, self.sets = branch, blocks, sets
        self.prices = blocks.prices
        self.columns: dict[tuple[int, ...], None] = {}
        self.empty = False
        self.shares: list[tuple[tuple[int, ...], float]] = []

    def uncut(self, worths: Worths, total: float, partitions: int) -> list[Flow]:
        """Return the flows that no split can cut: [2]."""
        enough = (partitions - 2) * worths.best + 2 * worths.cutting
        missing = total - enough > _TOLERANCE * partitions * abs(worths.best)
        return [self.blocks.problem.flows[flow] for flow in np.flatnonzero(missing)]

    def joined(self, flows: Iterable[Flow], prices: Floats) -> _Branch:
        branch, spread = self.branch, self.blocks.spread(prices)
        for flow in flows:
            branch = branch.joined([self.blocks.members[end][0] for end in (flow.source, *flow.users)], spread)
        return branch

    def pair(self, fractional: bool) -> tuple[int, int] | None:
        """Return two groups to branch on: of a costly flow, and together about as much as apart, if there are such."""
        together: dict[tuple[int, int], float] = {}
        for column, share in self.shares:
            for pair in combinations(column, 2):
                together[pair] = together.get(pair, 0.0) + share
        open_pairs = {pair: share for pair, share in together.items() if share < 1 - 1e-6 or not fractional}
        if not open_pairs:
            return None
        costs = self._costs_between()
        group_cost = self.blocks.problem.cost
        best = max(
            open_pairs,
            key=lambda pair: (
                costs.get(pair, 0.0) * min(open_pairs[pair], 1.0 - open_pairs[pair] + (not fractional)),
                float(group_cost[list(pair)].sum()),
            ),
        )
        return self.blocks.members[best[0]][0], self.blocks.members[best[1]][0]

    def _costs_between(self) -> dict[tuple[int, int], float]:
        """Return what the flows between pairs of blocks cost."""
        costs: dict[tuple[int, int], float] = {}
        for flow in self.blocks.problem.flows:
            for user in flow.users:
                pair = min(flow.source, user), max(flow.source, user)
                costs[pair] = costs.get(pair, 0.0) + flow.seconds
        return costs


def _drop_poorest(columns: dict[tuple[int, ...], None], prices: Floats) -> None:
    """Drop the sets that are worth least when there are many."""
    if len(columns) > _MAX_COLUMNS * len(prices):
        worth = {column: float(prices[list(column)].sum()) for column in columns}
        for column in sorted(worth, key=worth.__getitem__)[: len(columns) // 2]:
            del columns[column]


def _taken(columns: Iterable[tuple[int, ...]], shares: Floats) -> list[tuple[tuple[int, ...], float]]:
    return [(column, share) for column, share in zip(columns, shares.tolist(), strict=True) if share > 1e-9]
