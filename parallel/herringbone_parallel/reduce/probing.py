"""Measures the cost of sums between these ranks, from which the sizes of buckets follow."""

from __future__ import annotations

import statistics
import time

import numpy as np

from herringbone_parallel.core.sums.links import Cost, fit_shaped, next_probe
from herringbone_parallel.reduce.collectives import broadcast
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine

# In a backward, the next bucket starts before the last sum is back, so the cost of one more sum among several counts.
_CONCURRENT = 4
_BUDGET_S = 0.25


def measure(engine: Engine, *, budget_s: float = _BUDGET_S) -> Cost:
    """Time sums of growing size and return their cost, which is the same on every rank; all ranks call it together.

        buckets = plan_buckets(tensors, ready_s=..., cost=measure(engine))

    The fixed part is the cost of one more sum while others are in progress, not the time of a lone sum. Afterwards the
    engine uses chunks that suit these links.
    """
    points: list[tuple[int, float]] = []
    while (probe := next_probe(points, budget_s=budget_s / _CONCURRENT)) is not None:
        buffers = [np.zeros(probe.size // 4, np.float32) for _ in range(_CONCURRENT)]
        seconds = [_seconds(engine, buffers) for _ in range(probe.repeats)]
        # Clocks differ between ranks, but all ranks must plan the same buckets: they use rank 0's median.
        agreed = np.array([statistics.median(seconds)])
        broadcast(engine, agreed)
        points.append((probe.size, float(agreed[0])))
    cost = fit_shaped(points)
    engine.suit(cost)
    return cost


def _seconds(engine: Engine, buffers: list[Array]) -> float:
    start = time.perf_counter()
    for handle in [engine.all_reduce(buffer) for buffer in buffers]:
        handle.wait()
    return (time.perf_counter() - start) / len(buffers)
