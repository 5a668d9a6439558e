"""The bound by prices is a bound, and higher than counting on models where counting is far off."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from benchmarks.partition.shapes import resnet50

from herringbone_parallel.core.partition import decide
from herringbone_parallel.core.partition_columns import cost_of, raise_bound
from herringbone_parallel.core.partition_pricing import Pricing
from herringbone_parallel.core.partition_problem import make_problem
from tests.parallel.core.random_trees import all_splits, costs_of, random_tree


def every_set(size: int) -> list[tuple[int, ...]]:
    return [members for count in range(size + 1) for members in combinations(range(size), count)]


def test_no_set_within_the_limit_is_worth_more() -> None:
    for seed in range(40):
        generator = random.Random(seed)
        problem = make_problem(random_tree(generator, generator.randint(4, 9)), generator.choice([0.0, 0.2, 0.8]))
        prices = np.array([generator.uniform(-0.3, 1.0) for _ in range(problem.size)])
        limit = generator.uniform(0.2, 0.9)
        costs = {members: cost_of(problem, members) for members in every_set(problem.size)}
        pricing = Pricing(problem, limit)
        members, worths = pricing.best(prices)
        assert prices[list(members)].sum() == pytest.approx(worths[-1])
        # Rounding down lets a set through that is too costly by a cell for each of its groups and flows at most.
        assert costs[members] <= limit + 40 * pricing.cell
        for cells in (len(worths) - 1, len(worths) // 2):
            best = max(prices[list(one)].sum() for one, cost in costs.items() if cost <= cells * pricing.cell)
            assert worths[cells] >= best - 1e-9


def test_the_bound_is_below_every_split() -> None:
    pytest.importorskip("scipy")
    raised = 0
    for seed in range(25):
        generator = random.Random(seed)
        tree = random_tree(generator, generator.randint(6, 10))
        problem, partitions = make_problem(tree, generator.choice([0.0, 0.2])), generator.randint(2, 4)
        partitions = min(partitions, problem.size)
        costs, _ = costs_of(problem, all_splits(problem.size, partitions), partitions)
        best = float(costs.max(axis=1).min())
        low = float(problem.cost.sum()) / partitions
        if low < best:
            bound = raise_bound(problem, partitions, (low, best), 2.0)
            assert bound is not None
            assert low <= bound <= best
            raised += bound > low
    assert raised > 10


def test_where_counting_is_far_off_prices_are_nearer() -> None:
    pytest.importorskip("scipy")
    decision = decide(resnet50(), 8, memory_weight=0.2, budget_seconds=12.0)
    assert decision.certificate in ("prices (column generation)", "MILP (HiGHS)")
    assert decision.gap < 0.7, "86 % by counting; on a machine of its own 7 %"
