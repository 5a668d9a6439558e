"""Simulates an all-reduce: a ring, a tree, or shards summed by workers and helpers over links with queues.

    cluster = Cluster(workers=4, helpers=4, link=HostLink(bytes_per_s=23.8e6, latency_s=6e-4))
    sharded([Sum(25_000_000)], cluster, Window())       # the seconds at which each sum is back on all workers
    ring([Sum(25_000_000)], cluster)

All workers are alike, and so are all helpers. One of each represents all, so 2,048 hosts cost no more time than two.
A round is one chunk of every shard of a kind of server. It passes the lanes of the two hosts. A lane is one direction
of a link and serves requests in the order of their arrival:

                     worker out   helper in       helper out   worker in
    helpers' shards  k chunks  -> n chunks, sum
                                                  n chunks  -> k chunks         the result
    workers' shards  n - 1     -----------------------------> n - 1, sum
                     n - 1     -----------------------------> n - 1             the result

[1] A push needs a credit. It waits for the result of an older round: as many rounds back as fit in `window.bytes`.
[2] A result starts when the whole round has arrived. A worker sends to all servers at once, so all are complete
    together.
[3] With several ranks on a host, the host first sums a bucket inside, then each rank carries its slice, and at the end
    the host gathers the slices inside. M bytes per host cross the network for any number of ranks.

Losses are not simulated, because the window prevents them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import MESSAGE_BYTES, Window, choose_chunk
from herringbone_parallel.core.sums.shards import Shard, shard_map

# Of buckets in a row only the last one waits for a round of chunks, but all of them have messages. So a message weighs
# this much more than for a lone sum when chunks are chosen.
_MESSAGE_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class Sum:
    """A bucket to sum: its bytes, and the second at which they are final."""

    size: int
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 0 or self.ready_s < 0:
            raise ParallelError(f"{self}: neither is negative")


def ring(sums: Sequence[Sum], cluster: Cluster, *, waits: int = 1) -> tuple[float, ...]:
    """Return the second at which each sum is back, in a ring of the workers, one bucket after the other.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> ring([Sum(1200)], Cluster(workers=4, link=HostLink(bytes_per_s=100, latency_s=1)))
    (24.0,)

    A ring takes 2 (n - 1) steps. In each a worker sends an n-th of the bucket to the next worker. `waits` is the number
    of times in a step that one side waits for the other: more than one if a message is announced before it is sent.
    """
    link = cluster.link

    def seconds(size: int) -> float:
        # A step starts when the message of the step before has arrived, so every step pays the latency.
        steps = 2 * (cluster.workers - 1)
        return steps * (waits * link.latency_s + link.busy_s(size / cluster.workers, 1))

    return _one_by_one(sums, cluster, seconds)


def tree(sums: Sequence[Sum], cluster: Cluster) -> tuple[float, ...]:
    """Return the second at which each sum is back, up and down two binary trees with half of a bucket each, as in NCCL.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> tree([Sum(1200)], Cluster(workers=4, link=HostLink(bytes_per_s=100, latency_s=1)))
    (28.0,)

    A worker is a leaf in one tree and has two children in the other, so it sends the bucket twice, once with two
    workers.
    """
    link = cluster.link
    depth = (cluster.workers - 1).bit_length()

    def seconds(size: int) -> float:
        # Chunks flow through all levels at once: the bytes are paid once, the latency once per level, up and down.
        return 2 * depth * link.latency_s + link.busy_s(min(2, depth) * size, 2 * depth)

    return _one_by_one(sums, cluster, seconds)


def sharded(sums: Sequence[Sum], cluster: Cluster, window: Window, *, level: bool = True) -> tuple[float, ...]:
    """Return the second at which each sum is back, with the shards of `shard_map`.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> sharded([Sum(65536)], Cluster(workers=2, helpers=2, link=HostLink(32768)), Window())
    (2.25,)

    Workers send the sums in the given order, to each server as its credits allow. With `level`, chunks are as small as
    suits the largest shard, and every shard has as many chunks, so that large and small shards end together. Without
    it, all chunks have `window.chunk_bytes`: the workers' small shards end early, and only the helpers' links are busy
    in the end.
    """
    return _Sharded(sums, cluster, window, level).run()


def _one_by_one(sums: Sequence[Sum], cluster: Cluster, seconds: Callable[[int], float]) -> tuple[float, ...]:
    """Return the second at which each sum is back, when one sum after another takes `seconds` between hosts."""
    ends = []
    free_s = inside_free_s = 0.0
    for bucket in sums:
        inside_s = cluster.inside_s(bucket.size)
        # The links inside a host and those between hosts work at the same time, on different buckets.
        inside_free_s = max(inside_free_s, bucket.ready_s) + inside_s
        free_s = max(free_s, inside_free_s) + seconds(bucket.size)
        ends.append(free_s + inside_s)
    return tuple(ends)


@dataclass(frozen=True, slots=True)
class _Flow:
    """A bucket's shards on one kind of server.

    In a round `sent` chunks leave each worker, and `received` chunks reach each server. `credits` limits the rounds in
    flight.
    """

    bucket: int
    by_helpers: bool
    shard_bytes: int
    sent: int
    received: int
    credits: int


@dataclass(frozen=True, slots=True)
class _Round:
    """One chunk of each shard of a flow."""

    flow: _Flow
    chunk_bytes: int


class _Lane:
    """One direction of a host's link."""

    __slots__ = ("_free_s",)

    def __init__(self) -> None:
        self._free_s = 0.0

    def take(self, now_s: float, seconds: float) -> float:
        """Occupy the lane for `seconds`, after all earlier requests; return the second at which that ends."""
        self._free_s = max(now_s, self._free_s) + seconds
        return self._free_s


class _Sharded:
    """The state of one simulated run."""

    def __init__(self, sums: Sequence[Sum], cluster: Cluster, window: Window, level: bool) -> None:
        self._sums = sums
        self._cluster = cluster
        rounds = [
            chunks
            for index, bucket in enumerate(sums)
            for chunks in _rounds(index, bucket.size, cluster, window, level)
        ]
        # Helpers and workers have connections of their own, so a push to one kind never waits for the other kind.
        self._queues = [iter([one for one in rounds if one.flow.by_helpers is kind]) for kind in (True, False)]
        self._heads = [next(queue, None) for queue in self._queues]
        self._in_flight = {True: 0, False: 0}
        self._missing = [sum(one.flow.bucket == index for one in rounds) for index in range(len(sums))]
        self._ready = [False] * len(sums)
        self._ends = [0.0] * len(sums)
        # One worker and one helper represent all, so four lanes suffice.
        self._worker_out, self._worker_in, self._helper_out, self._helper_in = (_Lane() for _ in range(4))
        self._inside = _Lane()
        self._now_s = 0.0
        # (time, number, action); the number breaks ties of time, so that the heap never compares two actions.
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def run(self) -> tuple[float, ...]:
        for index, bucket in enumerate(self._sums):
            self._at(bucket.ready_s, partial(self._sum_inside, index))
        while self._heap:
            self._now_s, _, action = heapq.heappop(self._heap)
            action()
        assert not any(self._missing), f"rounds that never ended, by bucket: {self._missing}"
        return tuple(self._ends)

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._numbers), action))

    def _sum_inside(self, index: int) -> None:
        end_s = self._inside.take(self._now_s, self._cluster.inside_s(self._sums[index].size))
        self._at(end_s, partial(self._make_ready, index))

    def _make_ready(self, index: int) -> None:
        self._ready[index] = True
        if self._missing[index]:
            self._push()
        else:
            # Nothing crosses the network: a lone worker, or an empty bucket.
            self._gather_inside(index)

    def _gather_inside(self, index: int) -> None:
        self._ends[index] = self._inside.take(self._now_s, self._cluster.inside_s(self._sums[index].size))

    def _push(self) -> None:
        """Send every round that has its bucket and a credit [1]."""
        for number, queue in enumerate(self._queues):
            # In order within a kind of server: a round without bucket or credit holds up those behind it.
            while (head := self._heads[number]) is not None and self._may_push(head.flow):
                self._heads[number] = next(queue, None)
                self._in_flight[head.flow.by_helpers] += 1
                into = self._helper_in if head.flow.by_helpers else self._worker_in
                self._move(head, self._worker_out, into, head.flow.sent, head.flow.received, self._return)

    def _may_push(self, flow: _Flow) -> bool:
        return self._ready[flow.bucket] and self._in_flight[flow.by_helpers] < flow.credits

    def _return(self, chunks: _Round) -> None:
        """Send the sums of a round back to the workers [2]."""
        out = self._helper_out if chunks.flow.by_helpers else self._worker_out
        self._move(chunks, out, self._worker_in, chunks.flow.received, chunks.flow.sent, self._end)

    def _end(self, chunks: _Round) -> None:
        # The result that came back is the credit for another push [1].
        self._in_flight[chunks.flow.by_helpers] -= 1
        self._missing[chunks.flow.bucket] -= 1
        if not self._missing[chunks.flow.bucket]:
            self._gather_inside(chunks.flow.bucket)
        self._push()

    def _move(
        self, chunks: _Round, out: _Lane, into: _Lane, leaving: int, reaching: int, then: Callable[[_Round], None]
    ) -> None:
        """Send a round through an outgoing and an incoming lane, and call `then` when its last byte has arrived."""
        link = self._cluster.link
        out_s = link.busy_s(leaving * chunks.chunk_bytes, leaving)
        last_byte_s = out.take(self._now_s, out_s) + link.latency_s

        def arrive() -> None:
            end_s = into.take(self._now_s, link.busy_s(reaching * chunks.chunk_bytes, reaching))
            self._at(max(end_s, last_byte_s), partial(then, chunks))

        # The incoming lane starts with the first byte, not with the last: the two lanes overlap.
        self._at(last_byte_s - out_s, arrive)


def _rounds(bucket: int, size: int, cluster: Cluster, window: Window, level: bool) -> Iterator[_Round]:
    """Yield the rounds of a bucket, for each kind of server in the order in which workers push them."""
    shards = _shards(size, cluster)
    largest = max((shard.count for shard in shards), default=0)
    chunk_bytes = chunk_of(largest, cluster, window) if level else window.chunk_bytes
    number = -(-largest // chunk_bytes)
    for flow in _flows(bucket, shards, cluster, window.bytes // chunk_bytes):
        if level:
            # As many chunks for the smaller shards of workers as for the larger ones of helpers.
            chunk_bytes = -(-flow.shard_bytes // number)
        for start in range(0, flow.shard_bytes, chunk_bytes):
            yield _Round(flow, min(chunk_bytes, flow.shard_bytes - start))


def chunk_of(shard_bytes: int, cluster: Cluster, window: Window) -> int:
    """Return the bytes of a chunk of the largest shard: the engine's choice, or more if messages cost more."""
    message = _MESSAGE_WEIGHT * round(cluster.link.message_s * cluster.link.bytes_per_s)
    return choose_chunk(shard_bytes, most=window.chunk_bytes, message=max(MESSAGE_BYTES, message))


def _shards(size: int, cluster: Cluster) -> tuple[Shard, ...]:
    link = cluster.link
    message = max(1, round(link.message_s * link.bytes_per_s))
    return shard_map(size, cluster.workers, cluster.helpers, message=message) if cluster.workers > 1 else ()


def _flows(bucket: int, shards: Sequence[Shard], cluster: Cluster, credits: int) -> Iterator[_Flow]:
    workers, helpers = cluster.workers, cluster.helpers
    by_helpers = [shard.count for shard in shards if shard.server < helpers]
    by_workers = [shard.count for shard in shards if shard.server >= helpers]
    if by_helpers:
        yield _Flow(bucket, True, max(by_helpers), len(by_helpers), workers, credits)
    if by_workers:
        # A worker's own part of its own shard does not travel. If not all workers serve, the one that represents all is
        # a worker that does not serve, because it sends the most.
        sent = len(by_workers) - (len(by_workers) == workers)
        yield _Flow(bucket, False, max(by_workers), sent, workers - 1, credits)
