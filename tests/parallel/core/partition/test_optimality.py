"""Splits are the best of all on small trees, and near the bound on models of real size."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise

import numpy as np
import pytest
from benchmarks.partition.baselines import equal_layers, smp_greedy
from benchmarks.partition.shapes import bert_large, gpt2, resnet50, thousand_modules

from herringbone_parallel.core.partition.chain import split_contiguous
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.problem import make_problem, weigh
from tests.parallel.core.partition.random_trees import all_splits, costs_of, random_tree

SEEDS = 500
WEIGHTS = (0.0, 0.2, 0.8, 1.0)


@pytest.mark.parametrize("part", range(10))
def test_no_split_of_a_random_tree_is_better(part):
    for seed in range(part, SEEDS, 10):
        generator = random.Random(seed)
        tree = random_tree(generator, generator.randint(4, 14))
        weight, partitions = generator.choice(WEIGHTS), generator.randint(2, 4)
        problem = make_problem(tree, weight)
        # Four partitions of thirteen groups could be split in 2.5 million ways.
        partitions = min(partitions, problem.size, 4 if problem.size <= 12 else 3)
        costs, _ = costs_of(problem, all_splits(problem.size, partitions), partitions)
        best = costs.max(axis=1).min()
        decision = decide(tree, partitions, memory_weight=weight)
        assert decision.bottleneck == pytest.approx(best, rel=1e-9), seed
        assert decision.bound == pytest.approx(best, rel=1e-9), seed
        assert decision.gap == 0.0


def test_under_a_memory_cap_no_split_of_a_random_tree_is_better():
    for seed in range(60):
        generator = random.Random(seed)
        tree = random_tree(generator, generator.randint(5, 10))
        problem = make_problem(tree, 0.2)
        costs, memory = costs_of(problem, all_splits(problem.size, 2), 2)
        smallest = int(memory.max(axis=1).min())
        cap = smallest + generator.randint(0, smallest // 10)
        best = costs.max(axis=1)[memory.max(axis=1) <= cap].min()
        decision = decide(tree, 2, memory_weight=0.2, memory_cap=cap)
        assert decision.bottleneck == pytest.approx(best, rel=1e-9), seed
        assert max(load.memory_bytes for load in decision.loads) <= cap


def test_no_contiguous_split_of_a_chain_is_better_by_cost_then_communication():
    for seed in range(100):
        generator = random.Random(seed)
        problem = make_problem(random_tree(generator, generator.randint(4, 10), chain=True), generator.choice(WEIGHTS))
        partitions = generator.randint(2, 4)
        ranks = []
        for cuts in combinations(range(1, problem.size), partitions - 1):
            edges = [0, *cuts, problem.size]
            labels = [label for label, (start, end) in enumerate(pairwise(edges)) for _ in range(start, end)]
            ranks.append(weigh(problem, labels, partitions).rank)
        labels = split_contiguous(problem, partitions)
        assert weigh(problem, labels, partitions).rank == pytest.approx(min(ranks), rel=1e-9), seed


def test_loads_follow_the_formula():
    generator = random.Random(7)
    problem = make_problem(random_tree(generator, 12), 0.2)
    splits = all_splits(problem.size, 3)[::97]
    costs, memory = costs_of(problem, splits, 3)
    for split, cost, held in zip(splits.tolist(), costs, memory, strict=True):
        loads = weigh(problem, split, 3)
        assert np.allclose(loads.cost, cost)
        assert np.allclose(loads.memory, held)


@pytest.mark.parametrize("partitions", [2, 4])
@pytest.mark.parametrize("model", [bert_large, gpt2])
def test_transformers_are_within_two_percent_of_the_bound(model, partitions):
    assert decide(model(), partitions, memory_weight=0.8).gap <= 0.02


@pytest.mark.parametrize("weight", [0.2, 0.8])
@pytest.mark.parametrize("model", [resnet50, bert_large, gpt2])
def test_better_than_equal_layers_and_than_the_greedy_recursion(model, weight):
    """The exception is ResNet-50 in two at 0.2, where the greedy recursion's split is proven to be the best."""
    tree = model()
    problem = make_problem(tree, weight)
    for partitions in (2, 4, 8):
        ours = decide(tree, partitions, memory_weight=weight).bottleneck
        for baseline in (equal_layers, smp_greedy):
            cost = weigh(problem, baseline(tree, partitions, weight), partitions).cost.max()
            best_already = (model, partitions, weight, baseline) == (resnet50, 2, 0.2, smp_greedy)
            assert ours == pytest.approx(cost) if best_already else ours < cost


def test_a_thousand_modules_take_less_than_five_seconds():
    """Measured: 0.2 to 0.7 s on 2 cores, see benchmarks/partition."""
    tree = thousand_modules()
    assert sum(bool(node.parameters) for node in tree.root.walk()) > 990
    start = time.perf_counter()
    decide(tree, 8, memory_weight=0.8)
    assert time.perf_counter() - start < 5.0
