from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from herringbone_parallel.core.partition import ModuleCost, by_bytes
from herringbone_spec.errors import ParallelError


def chain(*weights: int) -> list[ModuleCost]:
    return [ModuleCost(f"m{index}", {index: weight}) for index, weight in enumerate(weights)]


def heaviest(modules: list[ModuleCost], assigned: dict[str, int], partitions: int) -> int:
    loads = [0] * partitions
    for module in modules:
        loads[assigned[module.path]] += sum(module.parameters.values())
    return max(loads)


def brute_force(weights: list[int], partitions: int) -> int:
    best = sum(weights)
    for cuts in combinations(range(1, len(weights)), partitions - 1):
        edges = [0, *cuts, len(weights)]
        best = min(best, max(sum(weights[a:b]) for a, b in pairwise(edges)))
    return best


def test_the_greatest_load_is_the_least_possible() -> None:
    generator = random.Random(3)
    for _ in range(200):
        weights = [generator.randint(1, 50) for _ in range(generator.randint(4, 9))]
        partitions = generator.randint(2, 4)
        modules = chain(*weights)
        assigned = by_bytes(modules, partitions)
        assert heaviest(modules, assigned, partitions) == brute_force(weights, partitions)
        order = [assigned[module.path] for module in modules]
        assert order == sorted(order)
        assert set(order) == set(range(partitions))


def test_modules_that_share_a_parameter_stay_together() -> None:
    tied = [ModuleCost("embed", {1: 100}), ModuleCost("middle", {2: 90}), ModuleCost("head", {1: 100, 3: 5})]
    assigned = by_bytes(tied, 2)
    assert assigned["embed"] == assigned["head"] != assigned["middle"]


def test_sharing_is_transitive() -> None:
    modules = [
        ModuleCost("a", {1: 10}),
        ModuleCost("b", {2: 10}),
        ModuleCost("c", {1: 10, 2: 10}),
        ModuleCost("d", {4: 10}),
    ]
    assert by_bytes(modules, 2) == {"a": 0, "b": 0, "c": 0, "d": 1}


def test_modules_without_parameters_are_not_assigned() -> None:
    assert by_bytes([ModuleCost("", {}), *chain(1, 1)], 2) == {"m0": 0, "m1": 1}


def test_too_few_modules_are_named() -> None:
    with pytest.raises(ParallelError, match="2 separable modules with parameters, too few for 3 partitions"):
        by_bytes(chain(1, 1), 3)
