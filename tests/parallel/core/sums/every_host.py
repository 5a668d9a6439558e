"""An oracle for `sums.simulate`: it simulates every host and every message, without use of symmetry."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count

from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.core.sums.shards import Shard, shard_map
from herringbone_parallel.core.sums.simulate import chunk_of


def sum_seconds(size: int, cluster: Cluster, window: Window, *, level: bool = True) -> float:
    """Return the second at which the last host has the whole sum of one bucket of `size` bytes."""
    return _EveryHost(size, cluster, window, level).run()


class _EveryHost:
    """One run: each worker has a queue of chunks per server, and sends from all of them in turn, as credits allow."""

    def __init__(self, size: int, cluster: Cluster, window: Window, level: bool) -> None:
        self.cluster = cluster
        self.plan: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = self.ended = 0.0
        self.out_free: dict[int, float] = defaultdict(float)
        self.in_free: dict[int, float] = defaultdict(float)
        self.arrived: dict[Shard, int] = defaultdict(int)
        self.waiting: dict[int, list[list[Shard]]] = {}
        shards = shard_map(size, cluster.workers, cluster.helpers, message=1)
        largest = max(shard.count for shard in shards)
        most = chunk_of(largest, cluster, window) if level else window.chunk_bytes
        rounds = -(-largest // most)
        queues = [_chunks(shard, -(-shard.count // rounds) if level else most) for shard in shards]
        self.credits: dict[tuple[int, int], int] = defaultdict(lambda: window.bytes // most)
        for number in range(cluster.workers):
            worker = cluster.helpers + number
            # Each worker starts with a different server, so that they do not all hit the same port.
            start = number % len(queues)
            rotated = [*queues[start:], *queues[:start]]
            self.waiting[worker] = [list(queue) for queue in rotated if queue[0].server != worker]

    def run(self) -> float:
        for worker in self.waiting:
            self.at(0.0, partial(self.push, worker))
        while self.plan:
            self.now, _, action = heapq.heappop(self.plan)
            action()
        assert not any(queue for queues in self.waiting.values() for queue in queues)
        return self.ended

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.plan, (time, next(self.order), action))

    def send(self, source: int, target: int, size: int, then: Callable[[], None]) -> None:
        link = self.cluster.link
        busy = link.busy_s(size, 1)
        self.out_free[source] = max(self.now, self.out_free[source]) + busy
        last_byte = self.out_free[source] + link.latency_s

        def arrive() -> None:
            self.in_free[target] = max(self.now, self.in_free[target]) + busy
            self.at(max(self.in_free[target], last_byte), then)

        self.at(last_byte - busy, arrive)

    def push(self, worker: int) -> None:
        sent = True
        while sent:
            sent = False
            for queue in self.waiting[worker]:
                if queue and self.credits[worker, queue[0].server] > 0:
                    part = queue.pop(0)
                    self.credits[worker, part.server] -= 1
                    self.send(worker, part.server, part.count, partial(self.gather, part))
                    sent = True

    def gather(self, part: Shard) -> None:
        workers, helpers = self.cluster.workers, self.cluster.helpers
        self.arrived[part] += 1
        if self.arrived[part] < workers - (part.server >= helpers):
            return
        # Servers, too, start with different workers.
        for turn in range(workers):
            worker = helpers + (part.server + turn) % workers
            if worker != part.server:
                self.send(part.server, worker, part.count, partial(self.end, worker, part.server))

    def end(self, worker: int, server: int) -> None:
        self.ended = self.now
        self.credits[worker, server] += 1
        self.push(worker)


def _chunks(shard: Shard, most: int) -> list[Shard]:
    starts = range(0, shard.count, most)
    return [Shard(shard.server, shard.offset + start, min(most, shard.count - start)) for start in starts]
