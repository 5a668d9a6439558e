"""Random cost trees, and the costs of all their splits, computed simply and without the partitioner."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value
from herringbone_parallel.core.partition.problem import Problem


def random_tree(generator: random.Random, modules: int, *, chain: bool = False) -> CostTree:
    """Return a tree of that many modules below the root; a chain has neither nesting, sharing nor skips."""
    paths = [f"m{index}" for index in range(modules)]
    parents: dict[str, list[str]] = {"": [], **{path: [] for path in paths}}
    for index, path in enumerate(paths):
        nested = not chain and index and generator.random() < 0.3
        parents[generator.choice(paths[:index]) if nested else ""].append(path)
    shared = [] if chain else generator.sample(paths, 2 * generator.randint(0, modules // 6))

    def node(path: str) -> CostNode:
        bare = not path or (not chain and generator.random() < 0.1)
        parameters = {} if bare else {len(path) * 1000 + int(path[1:]): generator.randint(1, 100)}
        if path in shared:
            parameters[shared.index(path) // 2] = generator.randint(1, 60)
        return CostNode(
            path=path,
            parameters=parameters,
            activation_bytes=generator.randint(0, 30),
            seconds=generator.uniform(0.0, 10.0),
            input_bytes=generator.randint(0, 20),
            children=tuple(node(child) for child in parents[path]),
        )

    values = () if chain else tuple(_values(generator, paths))
    return CostTree(root=node(""), link=Link(seconds=generator.random() / 10, bytes_per_second=20.0), values=values)


def _values(generator: random.Random, paths: Sequence[str]) -> list[Value]:
    pairs = [(before, (after,)) for before, after in pairwise(paths)]
    for _ in range(len(paths) // 3):
        source, *users = generator.sample(paths, min(generator.randint(2, 4), len(paths)))
        pairs.append((source, tuple(users)))
    return [
        Value(
            source=source,
            users=users,
            forward_bytes=generator.randint(0, 20),
            backward_bytes=generator.choice([0, generator.randint(0, 20)]),
        )
        for source, users in pairs
    ]


def all_splits(groups: int, partitions: int) -> np.ndarray:
    """Return every way to put the groups on that many non-empty partitions, one per row."""
    # One split per column until the end: numpy handles long rows fastest, and the tests look at millions of splits.
    splits = np.zeros((1, 1), np.int8)
    opened = np.ones(1, np.int8)
    for _ in range(groups - 1):
        legal = [np.flatnonzero(opened >= label) for label in range(partitions)]
        labels = np.repeat(np.arange(partitions, dtype=np.int8), [len(columns) for columns in legal])
        columns = np.concatenate(legal)
        splits = np.concatenate([splits[:, columns], labels[None]])
        opened = np.maximum(opened[columns], labels + 1)
    return np.ascontiguousarray(splits[:, opened == partitions].T)


def costs_of(problem: Problem, splits: np.ndarray, partitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each split, the cost and the bytes of each partition, straight from the formula."""
    on = [[row == partition for row in np.ascontiguousarray(splits.T)] for partition in range(partitions)]
    cost = np.zeros((partitions, len(splits)))
    memory = np.zeros((partitions, len(splits)))
    for partition, groups in enumerate(on):
        for group, is_on in enumerate(groups):
            cost[partition] += problem.cost[group] * is_on
            memory[partition] += problem.memory[group] * is_on
    for flow in problem.flows:
        weight = problem.seconds_share * flow.seconds
        sent = np.zeros(len(splits))
        for partition, groups in enumerate(on):
            users_on = np.logical_or.reduce([groups[user] for user in flow.users])
            received = weight * (users_on & ~groups[flow.source])
            cost[partition] += received
            sent += received
        for partition, groups in enumerate(on):
            cost[partition] += sent * groups[flow.source]
    return cost.T, memory.T
