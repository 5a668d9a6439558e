"""Branch and price proves valid bounds, finds the best splits, and closes gaps that counting leaves."""

from __future__ import annotations

import random
import time
from itertools import combinations

import numpy as np
import pytest
from benchmarks.partition.certify import certify
from benchmarks.partition.proof import prove
from benchmarks.partition.sets import Sets, ends_of
from benchmarks.partition.shapes import resnet50

from herringbone_parallel.core.partition.problem import Problem, make_problem, weigh
from tests.parallel.core.partition.random_trees import all_splits, costs_of, random_tree


def every_set(size: int) -> list[tuple[int, ...]]:
    return [members for count in range(size + 1) for members in combinations(range(size), count)]


def cut_by(problem: Problem, members: tuple[int, ...]) -> list[int]:
    """Return the flows with groups both in the set and out of it."""
    inside = set(members)
    return [
        number
        for number, flow in enumerate(problem.flows)
        if 0 < len(inside.intersection(ends_of(flow))) < len(ends_of(flow))
    ]


def cost_of(problem: Problem, members: tuple[int, ...]) -> float:
    """Return the least cost of a partition of these groups: the groups, and each cut flow once."""
    cut = sum(problem.flows[flow].seconds for flow in cut_by(problem, members))
    return sum(float(problem.cost[group]) for group in members) + problem.seconds_share * cut


def test_no_set_within_the_limit_is_worth_more() -> None:
    for seed in range(40):
        generator = random.Random(seed)
        problem = make_problem(random_tree(generator, generator.randint(4, 9)), generator.choice([0.0, 0.2, 0.8]))
        prices = np.array([generator.uniform(-0.3, 1.0) for _ in range(problem.size)])
        limit = generator.uniform(0.2, 0.9)
        apart = [pair for pair in combinations(range(problem.size), 2) if generator.random() < 0.1]
        legal = [one for one in every_set(problem.size) if not any(set(pair) <= set(one) for pair in apart)]
        costs = {members: cost_of(problem, members) for members in legal}
        sets = Sets(problem, limit, apart)
        worths = sets.worths(prices)
        for members, worth in worths.sets.items():
            assert prices[list(members)].sum() == pytest.approx(worth)
            # Rounding down lets a set through that is too costly by a cell for each of its groups and flows at most.
            assert costs[members] <= limit + 40 * sets.cell
        for cells in (len(worths.within) - 1, len(worths.within) // 2):
            best = max(prices[list(one)].sum() for one, cost in costs.items() if cost <= cells * sets.cell)
            assert worths.within[cells] >= best - 1e-9
        for flow, most in enumerate(worths.cutting):
            cutting = [one for one in legal if flow in cut_by(problem, one) and costs[one] <= limit]
            assert most >= max((prices[list(one)].sum() for one in cutting), default=-np.inf) - 1e-9


@pytest.mark.parametrize("part", range(4))
def test_the_bound_is_below_every_split_and_the_split_is_the_best(part: int) -> None:
    """The proof starts from any split and from half of the average, so the result is its own work."""
    closed = 0
    for seed in range(part, 100, 4):
        generator = random.Random(seed)
        tree = random_tree(generator, generator.randint(5, 10))
        problem = make_problem(tree, generator.choice([0.0, 0.2, 0.8]))
        partitions = min(generator.randint(2, 4), problem.size)
        splits = all_splits(problem.size, partitions)
        costs = costs_of(problem, splits, partitions)[0].max(axis=1)
        best, known = float(costs.min()), float(costs[generator.randrange(len(splits))])
        proven = prove(problem, partitions, (0.5 / partitions, known), 2.0, time.process_time)
        assert proven.bound <= best * (1 + 1e-9), seed
        reached = known
        if proven.labels is not None:
            reached = weigh(problem, proven.labels, partitions).rank[0]
            assert reached < known
        closed += reached <= best * 1.001 and proven.bound >= best * 0.998
    # A value for several partitions counts once at its source until all of them are known, which leaves a few gaps.
    assert closed >= 20, "of 25; usually 24"


# 0.5 and 0.2 % are reached within half of the first time, and then it goes on; a slow machine takes the second one. By
# counting alone the gap is 17 and 57 %.
@pytest.mark.parametrize(("partitions", "budgets"), [(4, (15.0, 60.0)), (8, (8.0, 40.0))])
def test_gaps_that_counting_leaves_are_closed_to_two_percent(partitions: int, budgets: tuple[float, ...]) -> None:
    tree = resnet50()
    for seconds in budgets:
        decision = certify(tree, partitions, memory_weight=0.2, budget_seconds=seconds, clock=time.process_time)
        assert decision.certificate == "branch and price"
        if decision.gap <= 0.02:
            return
    pytest.fail(f"the gap is {decision.gap:.1%} after {budgets[-1]:.0f} s")


def test_resnet_is_within_two_percent_of_the_proven_bound() -> None:
    decision = certify(resnet50(), 2, memory_weight=0.8, budget_seconds=60.0)
    assert decision.certificate in ("branch and price", "MILP (HiGHS)")
    assert decision.gap <= 0.02
