"""An oracle for `simulate_reduce`: every host by itself, every chunk a message of its own, no use of symmetry."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from itertools import count

from herringbone_parallel.core.cluster import Cluster
from herringbone_parallel.core.credits import Window
from herringbone_parallel.core.shards import Shard, shard_map


def sum_seconds(size: int, cluster: Cluster, window: Window, *, level: bool = True) -> float:
    """Return when the last host has the whole sum of one bucket of `size` bytes.

    Each worker has a queue of chunks for each server, and sends from all of them in turn, as credits allow.
    """
    workers, helpers, link = cluster.workers, cluster.helpers, cluster.link
    shards = shard_map(size, workers, helpers, message=1)
    plan: list[tuple[float, int, Callable[[], None]]] = []
    order = count()
    out_free: dict[int, float] = defaultdict(float)
    in_free: dict[int, float] = defaultdict(float)
    credits: dict[tuple[int, int], int] = defaultdict(lambda: window.chunks)
    came: dict[tuple[int, int], int] = defaultdict(int)
    waiting: dict[int, list[list[Shard]]] = {}
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
        able = True
        while able:
            able = False
            for queue in waiting[worker]:
                if queue and credits[worker, queue[0].server] > 0:
                    part = queue.pop(0)
                    credits[worker, part.server] -= 1
                    send(worker, part.server, part.count, lambda part=part: gather(part))
                    able = True

    def gather(part: Shard) -> None:
        came[part.server, part.offset] += 1
        if came[part.server, part.offset] < workers - (part.server >= helpers):
            return
        # Servers, too, go round from different starts.
        hosts = range(helpers, helpers + workers)
        for worker in (hosts[(part.server + turn) % workers] for turn in range(workers)):
            if worker != part.server:
                send(part.server, worker, part.count, lambda worker=worker: end(worker, part.server))

    def end(worker: int, server: int) -> None:
        nonlocal ended
        ended = now
        credits[worker, server] += 1
        push(worker)

    rounds = -(-max(shard.count for shard in shards) // window.chunk_bytes)
    queues = [_chunks(shard, -(-shard.count // rounds) if level else window.chunk_bytes) for shard in shards]
    for number in range(workers):
        worker = helpers + number
        # Workers start with different servers, or all would meet at the first.
        start = number % len(queues)
        turned = [*queues[start:], *queues[:start]]
        waiting[worker] = [list(queue) for queue in turned if queue[0].server != worker]
        at(0.0, lambda worker=worker: push(worker))
    while plan:
        now, _, what = heapq.heappop(plan)
        what()
    assert not any(queue for queues in waiting.values() for queue in queues)
    return ended


def _chunks(shard: Shard, most: int) -> list[Shard]:
    starts = range(0, shard.count, most)
    return [Shard(shard.server, shard.offset + start, min(most, shard.count - start)) for start in starts]
