"""What sums cost between these ranks, measured when it is first asked for: what buckets are cut by."""

from __future__ import annotations

import statistics
import time

import numpy as np

from herringbone_parallel.core.sums.links import Cost, fit_shaped, next_probe
from herringbone_parallel.reduce.collectives import broadcast
from herringbone_parallel.reduce.elements import Array
from herringbone_parallel.reduce.engine import Engine

# In a backward the next bucket is under way before the last sum is back: so what counts is what one more costs.
_UNDER_WAY = 4
_BUDGET_S = 0.25


def measure(engine: Engine, *, budget_s: float = _BUDGET_S) -> Cost:
    """Time sums of growing size and return what they cost, the same on every rank; all ranks call it together.

        buckets = plan_buckets(tensors, ready_s=..., cost=measure(engine))

    The fixed part is what one more sum costs while others are under way, not how long a lone one takes. From then on
    the engine's chunks suit such links.
    """
    points: list[tuple[int, float]] = []
    while (probe := next_probe(points, budget_s=budget_s / _UNDER_WAY)) is not None:
        buffers = [np.zeros(probe.size // 4, np.float32) for _ in range(_UNDER_WAY)]
        taken = [_seconds(engine, buffers) for _ in range(probe.repeats)]
        # Each rank has its own clock, and all must plan the same buckets.
        agreed = np.array([statistics.median(taken)])
        broadcast(engine, agreed)
        points.append((probe.size, float(agreed[0])))
    cost = fit_shaped(points)
    engine.suit(cost)
    return cost


def _seconds(engine: Engine, buffers: list[Array]) -> float:
    began = time.perf_counter()
    for handle in [engine.all_reduce(buffer) for buffer in buffers]:
        handle.wait()
    return (time.perf_counter() - began) / len(buffers)
