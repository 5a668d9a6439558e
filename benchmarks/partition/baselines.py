"""Splits models as others do, for comparison: equal layers, and SMP v1's greedy recursion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from herringbone_parallel.core.partition.costs import CostNode, CostTree
from herringbone_parallel.core.partition.problem import make_problem


def equal_layers(tree: CostTree, partitions: int, memory_weight: float) -> list[int]:
    """Give each partition the same number of modules, in call order; return the partition of each group."""
    count = make_problem(tree, memory_weight).size
    return [min(group * partitions // count, partitions - 1) for group in range(count)]


def smp_greedy(tree: CostTree, partitions: int, memory_weight: float) -> list[int]:
    """Return the partition of each group by SMP v1's recursion.

    Sources: Karakus et al., arXiv 2111.05972, section on partitioning; developer guide, "How the library splits a
    model".

    From the root down, it cuts a node's ordered children into contiguous segments, at most as many as the node has
    devices, with the least greatest cost. It gives the devices to the segments in proportion to cost (D'Hondt), so a
    light segment may get none and stay with its parent. It divides segments of several devices in the same way.
    Communication does not count. Modules that share a parameter go with the first of them.
    """
    problem = make_problem(tree, memory_weight)
    group_of = {path: group for group, paths in enumerate(problem.members) for path in paths}
    # The whole weight of a group is at its first module.
    weight = {paths[0]: float(cost) for paths, cost in zip(problem.members, problem.cost, strict=True)}
    totals: dict[str, float] = {}
    for node in reversed(list(tree.root.walk())):
        totals[node.path] = weight.get(node.path, 0.0) + math.fsum(totals[child.path] for child in node.children)
    labels: dict[int, int] = {}

    def settle(nodes: Sequence[CostNode], device: int) -> None:
        for node in nodes:
            for inner in node.walk():
                if inner.path in group_of:
                    labels.setdefault(group_of[inner.path], device)

    def divide(nodes: Sequence[CostNode], first: int, devices: int) -> None:
        while len(nodes) == 1 and devices > 1 and nodes[0].children:
            if nodes[0].path in group_of:
                labels.setdefault(group_of[nodes[0].path], first)
            nodes = nodes[0].children
        if devices <= 1 or len(nodes) == 1:
            settle(nodes, first)
            return
        segments = _segments([totals[node.path] for node in nodes], devices)
        costs = [math.fsum(totals[node.path] for node in nodes[start:end]) for start, end in segments]
        shares, parent = _proportional(costs, devices), first
        for (start, end), share in zip(segments, shares, strict=True):
            divide(nodes[start:end], first if share else parent, share)
            first += share

    divide([tree.root], 0, partitions)
    return [labels[group] for group in range(problem.size)]


def _segments(costs: list[float], most: int) -> list[tuple[int, int]]:
    """Cut costs into at most `most` contiguous segments with the least greatest sum."""

    @cache
    def best(end: int, count: int) -> tuple[float, int]:
        if count == 1:
            return math.fsum(costs[:end]), 0
        return min((max(best(cut, count - 1)[0], math.fsum(costs[cut:end])), cut) for cut in range(count - 1, end))

    segments = []
    end = len(costs)
    for count in range(min(most, len(costs)), 0, -1):
        start = best(end, count)[1]
        segments.append((start, end))
        end = start
    return segments[::-1]


def _proportional(costs: list[float], devices: int) -> list[int]:
    """Distribute the devices by D'Hondt: each goes to the segment with the highest cost per device after it."""
    shares = [0] * len(costs)
    for _ in range(devices):
        shares[max(range(len(costs)), key=lambda index: costs[index] / (shares[index] + 1))] += 1
    return shares
