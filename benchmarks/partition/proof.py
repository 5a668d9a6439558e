"""Proves lower bounds on the greatest cost of any split, and sometimes finds a better split, by branch and price.

[1] Prices. Every group gets a price. If no set of groups that costs at most T (its cuts included) is worth more than 1,
    and all groups together are worth more than P, then P partitions cannot carry them. So the greatest cost of every
    split is above T. Good prices are the duals of the linear program that covers the groups with fractions of sets. A
    set enters the program when its worth is above 1 (column generation: Dantzig and Wolfe 1960).
[2] Flows that cannot be cut. At least two of the P sets cut a flow that is cut. If P - 2 of the best sets and two of
the
    best that cut the flow are worth less than all groups, no split within T cuts the flow: its groups become one block.
[3] Branches. If fractions of at most P sets cover the groups, two blocks are together in one branch and apart in the
    other (Ryan and Foster 1981). A branch ends when its prices prove that it is empty, or when it holds one split.

The bound by counting (core/partition/bounds.py) sees averages only. This one sees that each partition pays its own
cuts, and the sizes of groups.
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

# The newest prices of the program oscillate, so prices between them and the best ones are tried: the best ones' shares.
_BLENDS = (0.7, 0.3, 0.0)
# A smaller gap counts as closed.
_CLOSE_ENOUGH = 1e-3
# The first limit is this fraction below the known split. Its choice matters much: see the readings in README.md.
_FIRST_STEP = 0.0195
# Sets per group in the linear program; beyond it, half of them are dropped.
_MAX_COLUMNS = 24
# One limit gets this share of the remaining time.
_SHARE_OF_A_LIMIT = 0.5
# The cost in sets of a group that no set covers, in the linear program; high, so that sets cover it where possible.
_UNCOVERED = 100.0
# The linear program is solved to about this tolerance.
_TOLERANCE = 1e-7


@dataclass(frozen=True, slots=True)
class Proven:
    """A lower bound on the greatest cost, and a split that is better than the known one, if one was found."""

    bound: float
    labels: list[int] | None


@dataclass(frozen=True, slots=True)
class _Branch:
    """The splits in which the groups of a block are together, and some pairs of groups are apart.

    `block` has the number of each group's block. `whole` is True for the root, which holds all splits.
    """

    block: tuple[int, ...]
    apart: tuple[tuple[int, int], ...]
    prices: Floats
    whole: bool

    def joined(self, ends: Sequence[int], prices: Floats) -> _Branch:
        """Return the branch in which these groups are together."""
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
    """Work for about `seconds` of the `clock` on a problem with a `known` (bound, greatest cost).

        proven = prove(problem, 4, (0.25, 0.27), seconds=20.0)

    It ends early when the gap is closed. It ignores a memory cap; a bound without a cap holds with it.
    """
    deadline = clock() + seconds
    search = _Search(problem, partitions, known, clock)
    unproven, step = search.cost, _FIRST_STEP
    # Raise the bound to a limit that is proven empty; after a failure try a limit nearer to the bound.
    while unproven / search.bound - 1 > _CLOSE_ENOUGH and (remaining := deadline - clock()) > 0:
        limit = max((search.bound + unproven) / 2, (1 - step) * unproven)
        if search.empty(limit, deadline - (1 - _SHARE_OF_A_LIMIT) * remaining):
            search.bound = max(search.bound, limit)
        else:
            unproven, step = min(limit, search.cost), 2 * step
    return Proven(min(search.bound, search.cost), search.labels)


def _cover(columns: Iterable[Sequence[int]], size: int) -> tuple[float, Floats, Floats]:
    """Return the least number of (fractions of) sets that cover the groups, the fractions, and the groups' prices.

    A group that the sets cannot cover costs `_UNCOVERED` sets.
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
    """A branch as a problem in which each block is one group."""

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
            flows=tuple(Flow(source, users, duration) for (source, users), duration in seconds.items()),
        )
        self.apart = {self._pair(*pair) for pair in branch.apart}
        self.prices: Floats = np.bincount(self.number, branch.prices).astype(np.float64)

    @property
    def size(self) -> int:
        return len(self.members)

    def _pair(self, group: int, other: int) -> tuple[int, int]:
        first, second = sorted((self.number[group], self.number[other]))
        return first, second

    def set_of(self, groups: Iterable[int]) -> tuple[int, ...] | None:
        """Return a set of groups as a set of blocks, or None if it divides a block or holds a pair that is apart."""
        groups = list(groups)
        blocks = {self.number[group] for group in groups}
        whole = sum(len(self.members[block]) for block in blocks) == len(groups)
        legal = whole and not any(blocks.issuperset(pair) for pair in self.apart)
        return tuple(sorted(blocks)) if legal else None

    def groups_of(self, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(group for block in blocks for group in self.members[block]))

    def spread(self, prices: Floats) -> Floats:
        """Return prices of groups that add up to those of their blocks."""
        shares = prices / np.array([len(members) for members in self.members])
        spread: Floats = shares[self.number]
        return spread


class _Search:
    """The highest bound, the best split found (if it is better than the known one), and the last sets found."""

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
        self._sets: dict[tuple[int, ...], None] = {}

    def empty(self, limit: float, deadline: float) -> bool:
        """Return True if it is proven that no split costs at most the limit; False proves nothing."""
        waiting = [_Branch(tuple(range(self._problem.size)), (), self._problem.cost, whole=True)]
        while waiting:
            branch: _Branch | None = waiting.pop()
            while branch is not None:
                if self._clock() > deadline or self.cost <= limit:
                    return False
                blocks = _Blocks(self._problem, branch)
                # Fewer blocks than partitions, or a block above the limit: no split of this branch is possible.
                hopeless = blocks.size < self._partitions or float(blocks.problem.cost.max()) > limit
                if hopeless or any(block == other for block, other in blocks.apart):
                    break
                if blocks.size == self._partitions:
                    # One block per partition is a single split. Weigh it before the branch is dropped.
                    self._keep_better(blocks.number)
                    break
                node = _Node(branch, blocks, Sets(blocks.problem, limit, blocks.apart))
                branch = self._generate_columns(node, deadline)
                self._remember(node)
                halves = self._halves(node) if branch is None and not node.empty else []
                if branch is None and not node.empty and not halves:
                    return False
                waiting += halves
        return self.cost > limit

    def _generate_columns(self, node: _Node, deadline: float) -> _Branch | None:
        """Generate columns [1]; return the branch with uncut flows joined [2], or None when the node is finished."""
        columns = node.columns
        columns.update((column, None) for groups in self._sets if (column := node.blocks.set_of(groups)) is not None)
        value, prices, trials = 0.0, node.blocks.prices, [node.blocks.prices]
        while self._clock() < deadline:
            known = len(columns)
            for trial in trials:
                worths = node.sets.worths(trial)
                total = float(trial.sum())
                if total > value * worths.best:
                    value, prices = total / worths.best, trial / worths.best
                if node.branch.whole:
                    self._raise_bound(node.sets.cell, worths, total)
                if total > self._partitions * worths.best * (1 + _TOLERANCE):
                    node.empty = True
                    return None
                if uncut := node.uncut(worths, total, self._partitions):
                    return node.joined(uncut, prices)
                columns.update((column, None) for column in worths.sets)
            least, shares, newest = _cover(columns, node.blocks.size)
            if least <= self._partitions * (1 + _TOLERANCE):
                node.prices, node.shares = prices, _taken(columns, shares)
                return None
            if len(columns) == known and len(trials) > 1:
                return None
            _drop_poorest(columns, newest)
            trials = [blend * prices + (1 - blend) * newest for blend in _BLENDS]
        return None

    def _remember(self, node: _Node) -> None:
        """Keep the node's last sets for other branches, and forget the oldest sets."""
        for column in node.columns:
            groups = node.blocks.groups_of(column)
            self._sets.pop(groups, None)
            self._sets[groups] = None
        for groups in list(self._sets)[: max(len(self._sets) - 2 * _MAX_COLUMNS * self._problem.size, 0)]:
            del self._sets[groups]

    def _raise_bound(self, cell: float, worths: Worths, total: float) -> None:
        """Raise the bound to the highest limit that the prices prove to be too low; worths grow with the limit."""
        proven = int(np.searchsorted(worths.within * self._partitions * (1 + _TOLERANCE), total))
        self.bound = max(self.bound, min(proven - 1, len(worths.within) - 1) * cell)

    def _halves(self, node: _Node) -> list[_Branch]:
        """Return the two halves of a branch [3], the likelier one last; [] when there is no pair to branch on."""
        fractional = any(share < 1 - 1e-6 for _, share in node.shares)
        if not fractional:
            labels = [0] * self._problem.size
            for partition, (column, _) in enumerate(node.shares):
                for group in node.blocks.groups_of(column):
                    labels[group] = partition
            self._keep_better(labels)
        pair = node.pair(fractional)
        if pair is None:
            return []
        prices = node.blocks.spread(node.prices)
        parted = replace(node.branch, apart=(*node.branch.apart, pair), prices=prices, whole=False)
        return [parted, replace(node.branch, whole=False).joined(pair, prices)]

    def _keep_better(self, labels: list[int]) -> None:
        """Keep the split if it is better."""
        if len(set(labels)) == self._partitions:
            cost = weigh(self._problem, labels, self._partitions).rank[0]
            if cost < self.cost:
                self.cost, self.labels = cost, labels


class _Node:
    """A branch in work, and its result: it is `empty`, or `shares` of sets cover its blocks."""

    def __init__(self, branch: _Branch, blocks: _Blocks, sets: Sets) -> None:
        self.branch, self.blocks, self.sets = branch, blocks, sets
        self.prices = blocks.prices
        self.columns: dict[tuple[int, ...], None] = {}
        self.empty = False
        self.shares: list[tuple[tuple[int, ...], float]] = []

    def uncut(self, worths: Worths, total: float, partitions: int) -> list[Flow]:
        """Return the flows that no split within the limit cuts: [2]."""
        enough = (partitions - 2) * worths.best + 2 * worths.cutting
        missing = total - enough > _TOLERANCE * partitions * abs(worths.best)
        return [self.blocks.problem.flows[flow] for flow in np.flatnonzero(missing)]

    def joined(self, flows: Iterable[Flow], prices: Floats) -> _Branch:
        branch, spread = self.branch, self.blocks.spread(prices)
        for flow in flows:
            branch = branch.joined([self.blocks.members[end][0] for end in (flow.source, *flow.users)], spread)
        return branch

    def pair(self, fractional: bool) -> tuple[int, int] | None:
        """Return two groups to branch on: of a costly flow if possible, and about as often together as apart."""
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
        """Return the seconds of the flows between pairs of blocks."""
        costs: dict[tuple[int, int], float] = {}
        for flow in self.blocks.problem.flows:
            for user in flow.users:
                pair = min(flow.source, user), max(flow.source, user)
                costs[pair] = costs.get(pair, 0.0) + flow.seconds
        return costs


def _drop_poorest(columns: dict[tuple[int, ...], None], prices: Floats) -> None:
    """Drop the half of the sets with the least worth when there are too many."""
    if len(columns) > _MAX_COLUMNS * len(prices):
        worth = {column: float(prices[list(column)].sum()) for column in columns}
        for column in sorted(worth, key=worth.__getitem__)[: len(columns) // 2]:
            del columns[column]


def _taken(columns: Iterable[tuple[int, ...]], shares: Floats) -> list[tuple[tuple[int, ...], float]]:
    return [(column, share) for column, share in zip(columns, shares.tolist(), strict=True) if share > 1e-9]
