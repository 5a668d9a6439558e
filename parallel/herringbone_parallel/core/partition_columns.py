"""A lower bound on the greatest cost, by prices of groups: what a partition can carry is worth too little.

Give each group a price. If no set of groups that costs at most T (its cuts included) is worth more than 1, and all
groups together are worth more than P, then P partitions cannot carry them: every split's greatest cost is above T. Good
prices are the duals of the linear program that covers the groups with fractions of sets; the sets come into it as they
are found worth more than 1 (column generation: Dantzig and Wolfe 1960; the bound on the way: Farley 1990). Counting
(partition_bounds) sees averages only; this sees that each partition pays its own cuts, and the size of groups.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from herringbone_parallel.core.partition_pricing import Pricing, ends_of
from herringbone_parallel.core.partition_problem import Floats, Problem

# Prices between the best so far and the program's newest, which swing: shares of the former.
_BLENDS = (0.85, 0.6, 0.3, 0.0)
# Groups in all sets together that the program starts from.
_MAX_ENTRIES = 150_000
# A gap below it is closed, as far as this goes.
_CLOSE_ENOUGH = 1e-3
_TOLERANCE = 1e-7


def raise_bound(problem: Problem, partitions: int, known: tuple[float, float], seconds: float) -> float | None:
    """Return a bound at least as high as the known one, for a problem whose bound and greatest cost are `known`.

    It works for about `seconds`, less when the gap is closed or no higher bound can be had. None when scipy is not
    installed. A memory cap is not looked at; a bound without it holds with it.
    """
    try:
        optimize: Any = importlib.import_module("scipy.optimize")
        sparse: Any = importlib.import_module("scipy.sparse")
    except ImportError:
        return None
    deadline = time.monotonic() + seconds
    bound, cost = known
    search = _Search(problem, partitions, bound)
    # A limit that the program can keep with fractions of sets: this way of proof ends below it.
    kept = cost
    while kept / search.bound - 1 > _CLOSE_ENOUGH and time.monotonic() < deadline:
        limit = (search.bound + kept) / 2
        search.aim(limit)
        if not search.run(optimize.linprog, sparse.csc_matrix, deadline):
            kept = limit
    return min(search.bound, cost)


class _Search:
    """Looks for prices that prove a limit too low; `bound` is the greatest cost proven too low so far."""

    def __init__(self, problem: Problem, partitions: int, bound: float) -> None:
        self._problem, self._partitions = problem, partitions
        self.bound = bound
        self._prices = np.asarray(problem.cost, np.float64)
        self._columns: dict[tuple[int, ...], None] = {}

    def aim(self, limit: float) -> None:
        """Look at sets up to this limit from now on."""
        problem = self._problem
        self._pricing, self._worth = Pricing(problem, limit), 0.0
        single = [(group,) for group in range(problem.size)]
        fitting = [column for column in self._columns if cost_of(problem, column) <= limit]
        self._columns = dict.fromkeys([*fitting, *_runs(problem, limit), *single])
        self._try(self._prices)

    def run(self, linprog: Any, csc_matrix: Any, deadline: float) -> bool:
        """Say whether the limit is proven too low; False is no proof of anything."""
        while self.bound < self._pricing.limit:
            if time.monotonic() > deadline:
                return False
            starts = np.cumsum([0, *map(len, self._columns)])
            members = np.concatenate([np.array(column) for column in self._columns])
            shape = self._problem.size, len(self._columns)
            matrix = csc_matrix((np.ones(len(members)), members, starts), shape=shape)
            answer = linprog(np.ones(shape[1]), A_eq=matrix, b_eq=np.ones(shape[0]), method="highs")
            if answer.x is None or answer.fun <= self._partitions * (1 + _TOLERANCE):
                return False
            newest = np.asarray(answer.eqlin.marginals)
            found = [self._try(blend * self._prices + (1 - blend) * newest) for blend in _BLENDS]
            if not any(found):
                return False
        return True

    def _try(self, prices: Floats) -> bool:
        """Learn what the prices prove, keep them if they are the best so far; say whether they show a new set."""
        members, worths = self._pricing.best(prices)
        total = float(prices.sum())
        # Sums grow with the limit: the last one that P partitions need more than.
        proven = int(np.searchsorted(worths * self._partitions * (1 + _TOLERANCE), total))
        self.bound = max(self.bound, min(proven - 1, len(worths) - 1) * self._pricing.cell)
        if worths[-1] > 0 and total / worths[-1] > self._worth:
            self._worth, self._prices = total / float(worths[-1]), prices / worths[-1]
        if not members or members in self._columns:
            return False
        self._columns[members] = None
        return True


def cost_of(problem: Problem, members: Sequence[int]) -> float:
    """Return what a partition of these groups pays at least: its groups, and every flow that it cuts once."""
    inside = set(members)
    cut = sum(
        flow.seconds for flow in problem.flows if 0 < len(inside.intersection(ends_of(flow))) < len(ends_of(flow))
    )
    return float(sum(problem.cost[group] for group in members)) + problem.seconds_share * cut


def _runs(problem: Problem, limit: float) -> list[tuple[int, ...]]:
    """Return the longest runs of the call order from each group on that cost at most the limit."""
    touching: list[list[int]] = [[] for _ in range(problem.size)]
    flows = [ends_of(flow) for flow in problem.flows]
    for number, ends in enumerate(flows):
        for group in ends:
            touching[group].append(number)
    seconds = [problem.seconds_share * flow.seconds for flow in problem.flows]
    fitting: list[list[tuple[int, ...]]] = []
    for first in range(problem.size):
        inside = [0] * len(flows)
        groups = cut = 0.0
        ends_here: list[tuple[int, ...]] = []
        for group in range(first, problem.size):
            groups += float(problem.cost[group])
            if groups > limit:
                break
            for number in touching[group]:
                inside[number] += 1
                cut += seconds[number] * ((inside[number] == 1) - (inside[number] == len(flows[number])))
            if groups + cut <= limit:
                ends_here.append(tuple(range(first, group + 1)))
        fitting.append(ends_here)
    entries = sum(len(run) for runs in fitting for run in runs)
    share = min(1.0, _MAX_ENTRIES / max(entries, 1))
    return [run for runs in fitting for run in runs[-max(int(share * len(runs)), 2) :]]
