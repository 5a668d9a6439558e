"""An oracle for `simulate_reduce`: every host by itself, every chunk a message of its own, no use of symmetry."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from itertools import count

from herringbone_parallel.core.cluster import Cluster
from herringbone_parallel.core.credits import Window
from herringbone_parallel.core.shards import Shard, push_order, shard_map


def sum_seconds(size: int, cluster: Cluster, window: Window) -> float:
    """Return when the last host has the whole sum of one bucket of `size` bytes."""
    workers, helpers, link = cluster.workers, cluster.helpers, cluster.link
    shards = shard_map(size, workers, helpers, message=1)
    plan: list[tuple[float, int, Callable[[], None]]] = []
    order = count()
    out_free: dict[int, float] = defaultdict(float)
    in_free: dict[int, float] = defaultdict(float)
    credits: dict[tuple[int, int], int] = defaultdict(lambda: window.chunks)
    came: dict[tuple[int, int], int] = defaultdict(int)
    waiting: dict[int, list[Shard]] = {}
    now = ended = 0.0

    def at(when: float, what: Callable[[], None]) -> None:
        heapq.heappush(plan, (when, next(order), what))

    def send(source: int, target: int, size: int, then: Callable[[], None]) -> None:
        busy = link.busy_s(size, 1)
        out_free[source] = max(now, out_free[source]) + busy
        last_byte = out_free[source] + link.latency_s

        def arrive() -> None:
            in_free[target] = max(now, in_free[target]) + busy
            at(max(in_free[target], last_byte), then)

        at(last_byte - busy, arrive)

    def push(worker: int) -> None:
        left = waiting[worker]
        while left and credits[worker, left[0].server] > 0:
            part = left.pop(0)
            credits[worker, part.server] -= 1
            send(worker, part.server, part.count, lambda part=part: gather(part))

    def gather(part: Shard) -> None:
        came[part.server, part.offset] += 1
        if came[part.server, part.offset] < workers - (part.server >= helpers):
            return
        first = part.offset // window.chunk_bytes
        hosts = range(helpers, helpers + workers)
        for worker in (hosts[(first + turn) % workers] for turn in range(workers)):
            if worker != part.server:
                send(part.server, worker, part.count, lambda worker=worker: end(worker, part.server))

    def end(worker: int, server: int) -> None:
        nonlocal ended
        ended = now
        credits[worker, server] += 1
        push(worker)

    for number in range(workers):
        worker = helpers + number
        parts = push_order(shards, number, window.chunk_bytes)
        waiting[worker] = [part for part in parts if part.server != worker]
        at(0.0, lambda worker=worker: push(worker))
    while plan:
        now, _, what = heapq.heappop(plan)
        what()
    assert not any(waiting.values())
    return ended
