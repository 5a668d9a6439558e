"""Dividing two partitions again: the division is nearly the best, never worse than before, and within the cap."""

from __future__ import annotations

import random

import numpy as np
import pytest
from benchmarks.partition.shapes import resnet50

from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.pairs import CELLS, Pairs, redivide_pairs
from herringbone_parallel.core.partition.problem import Problem, make_problem, weigh
from tests.parallel.core.partition.random_trees import all_splits, costs_of, random_tree


def random_problem(seed: int) -> tuple[random.Random, Problem]:
    generator = random.Random(seed)
    return generator, make_problem(random_tree(generator, generator.randint(6, 11)), generator.choice([0.0, 0.2, 0.8]))


def test_divisions_are_the_best_up_to_rounding():
    """The random trees have values that a third partition, both sides, or one side use."""
    exact = 0
    for seed in range(150):
        generator, problem = random_problem(seed)
        labels = [0, 1, 2, *(generator.randrange(3) for _ in range(problem.size - 3))]
        costs = np.sort(weigh(problem, labels, 3).cost)
        divided = Pairs(problem, 3).descend(labels, max_steps=10**6)
        reached = weigh(problem, divided, 3).cost
        splits = all_splits(problem.size, 3)
        for one in range(3):
            # Every other division of two partitions that leaves the third as it is.
            third = np.array(divided) == one
            others = [split for split in splits if ((split == split[third][0]) == third).all()]
            best = costs_of(problem, np.array(others), 3)[0].max(axis=1).min()
            assert reached.max() <= best + costs[-1] * 40 / CELLS, seed
            exact += reached.max() <= best + 1e-12
    assert exact > 0.9 * 450


def test_a_split_never_gets_worse_and_keeps_within_the_cap():
    better = 0
    for seed in range(20):
        generator, problem = random_problem(seed)
        partitions = generator.randint(2, min(4, problem.size))
        labels = [*range(partitions), *(generator.randrange(partitions) for _ in range(problem.size - partitions))]
        before = weigh(problem, labels, partitions)
        cap = float(before.memory.max()) * generator.choice([1.0, 1.1, 2.0])
        # A tenth of a job's steps: these trees have at most eleven groups.
        divided = redivide_pairs(problem, labels, partitions, cap, max_steps=4_000)
        after = weigh(problem, divided, partitions)
        assert after.rank <= before.rank
        assert after.memory.max() <= cap
        better += after.rank[0] < before.rank[0]
    assert better > 10


def test_a_descent_ends_at_a_cost_that_is_enough():
    earlier = 0
    for seed in range(20):
        generator, problem = random_problem(seed)
        labels = [0, 1, 2, *(generator.randrange(3) for _ in range(problem.size - 3))]
        whole, part = Pairs(problem, 3), Pairs(problem, 3)
        before = weigh(problem, labels, 3).rank[0]
        best = weigh(problem, whole.descend(labels, max_steps=10**6), 3).rank[0]
        enough = (before + best) / 2
        assert weigh(problem, part.descend(labels, max_steps=10**6, enough=enough), 3).rank[0] <= enough
        earlier += part.steps < whole.steps
        assert Pairs(problem, 3).descend(labels, max_steps=10**6, enough=before) == labels
    assert earlier > 10


@pytest.mark.parametrize(
    ("partitions", "weight", "moves_alone", "reached"),
    [(2, 0.8, 0.5202, 0.5165), (4, 0.8, 0.2839, 0.2750), (8, 0.2, 0.2345, 0.2304)],
)
def test_runs_cross_values_that_single_groups_cannot(partitions, weight, moves_alone, reached):
    """Moves of single groups stop where ResNet-50's values are the largest."""
    decision = decide(resnet50(), partitions, memory_weight=weight)
    assert decision.method == "pairs"
    assert decision.bottleneck <= reached < moves_alone
