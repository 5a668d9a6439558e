"""An all-reduce in simulated time: a ring, a tree, or shards summed by workers and helpers over links with queues.

    cluster = Cluster(workers=4, helpers=4, link=HostLink(bytes_per_s=23.8e6, latency_s=6e-4))
    sharded([Sum(25_000_000)], cluster, Window())       # when each sum is back on all workers, in seconds
    ring([Sum(25_000_000)], cluster)

All workers are alike, and so are all helpers: one of each stands for all, and 2,048 hosts cost no more than two. A
round is one chunk of every shard of a kind of server. It goes through the lanes of the two hosts; a lane is one
direction of a link, and carries first what asked first:

                     worker out   helper in       helper out   worker in
    helpers' shards  k chunks  -> n chunks, sum
                                                  n chunks  -> k chunks         the result
    workers' shards  n - 1     -----------------------------> n - 1, sum
                     n - 1     -----------------------------> n - 1             the result

[1] A push needs a credit: it waits for the result that is as many rounds older as fit in `window.bytes`.
[2] A result starts when the whole round is in: a worker sends to all servers at once, and all are complete together.
[3] With several ranks on a host, a bucket is first summed inside, each rank then carries its slice, and at the end the
    slices are gathered inside: M bytes per host cross the network, whatever the number of ranks.

Losses are not simulated: the window is there to prevent them.
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

# Of buckets that follow each other only the last one waits for a round of chunks to come back; all have messages.
_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class Sum:
    """A bucket to be summed: so many bytes, final at `ready_s`."""

    size: int
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 0 or self.ready_s < 0:
            raise ParallelError(f"{self}: neither is negative")


def ring(sums: Sequence[Sum], cluster: Cluster, *, waits: int = 1) -> tuple[float, ...]:
    """Return when each sum is back, made in a ring of the workers, one bucket after the other.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> ring([Sum(1200)], Cluster(workers=4, link=HostLink(bytes_per_s=100, latency_s=1)))
    (24.0,)

    2 (n - 1) steps, each n-th of the bucket to the next worker. `waits` is how often within a step one side waits for
    the other to notice something: more than once where bytes are announced and the answer awaited.
    """
    link = cluster.link

    def seconds(size: int) -> float:
        steps = 2 * (cluster.workers - 1)
        return steps * (waits * link.latency_s + link.busy_s(size / cluster.workers, 1))

    return _one_by_one(sums, cluster, seconds)


def tree(sums: Sequence[Sum], cluster: Cluster) -> tuple[float, ...]:
    """Return when each sum is back, made up and down two binary trees, half of a bucket each, as NCCL does.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> tree([Sum(1200)], Cluster(workers=4, link=HostLink(bytes_per_s=100, latency_s=1)))
    (28.0,)

    A worker is a leaf in one tree and has two children in the other: it sends twice the bucket, once with two workers.
    """
    link = cluster.link
    depth = (cluster.workers - 1).bit_length()

    def seconds(size: int) -> float:
        return 2 * depth * link.latency_s + link.busy_s(min(2, depth) * size, 2 * depth)

    return _one_by_one(sums, cluster, seconds)


def sharded(sums: Sequence[Sum], cluster: Cluster, window: Window, *, level: bool = True) -> tuple[float, ...]:
    """Return when each sum is back, its shards summed by the helpers and workers that `shard_map` names.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> sharded([Sum(65536)], Cluster(workers=2, helpers=2, link=HostLink(32768)), Window())
    (2.25,)

    Sums are sent in the order in which they are given, to each server as its credits allow. `level`: chunks are as
    small as suits the shard, and every shard is cut in as many, so that large and small shards end together. Otherwise
    all chunks have `window.chunk_bytes`, the workers' small shards are done early, and helpers are all that is left to
    send to.
    """
    return _Sharded(sums, cluster, window, level).run()


def _one_by_one(sums: Sequence[Sum], cluster: Cluster, seconds: Callable[[int], float]) -> tuple[float, ...]:
    """Return when each sum is back, where one takes `seconds` between hosts and they follow each other."""
    ends = []
    free_s = inside_free_s = 0.0
    for one in sums:
        inside_s = cluster.inside_s(one.size)
        inside_free_s = max(inside_free_s, one.ready_s) + inside_s
        free_s = max(free_s, inside_free_s) + seconds(one.size)
        ends.append(free_s + inside_s)
    return tuple(ends)


@dataclass(frozen=True, slots=True)
class _Flow:
    """A bucket's shards on one kind of server: in a round `away` chunks leave a worker and `inward` reach a server.

    `credits` is how many rounds may be under way.
    """

    bucket: int
    by_helpers: bool
    shard_bytes: int
    away: int
    inward: int
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
        """Take the lane for so long, behind what asked before; return when it is through."""
        self._free_s = max(now_s, self._free_s) + seconds
        return self._free_s


class _Sharded:
    """The state of one simulated run."""

    def __init__(self, sums: Sequence[Sum], cluster: Cluster, window: Window, level: bool) -> None:
        self._sums = sums
        self._cluster = cluster
        rounds = [each for index, one in enumerate(sums) for each in _rounds(index, one.size, cluster, window, level)]
        self._queues = [iter([each for each in rounds if each.flow.by_helpers is kind]) for kind in (True, False)]
        self._heads = [next(queue, None) for queue in self._queues]
        self._under_way = {True: 0, False: 0}
        self._left = [sum(each.flow.bucket == index for each in rounds) for index in range(len(sums))]
        self._ready = [False] * len(sums)
        self._ends = [0.0] * len(sums)
        self._worker_out, self._worker_in, self._helper_out, self._helper_in = (_Lane() for _ in range(4))
        self._inside = _Lane()
        self._now_s = 0.0
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self) -> tuple[float, ...]:
        for index, one in enumerate(self._sums):
            self._at(one.ready_s, partial(self._sum_inside, index))
        while self._plan:
            self._now_s, _, what = heapq.heappop(self._plan)
            what()
        assert not any(self._left), f"rounds that never ended, by bucket: {self._left}"
        return tuple(self._ends)

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (when_s, next(self._order), what))

    def _sum_inside(self, index: int) -> None:
        through_s = self._inside.take(self._now_s, self._cluster.inside_s(self._sums[index].size))
        self._at(through_s, partial(self._make_ready, index))

    def _make_ready(self, index: int) -> None:
        self._ready[index] = True
        if self._left[index]:
            self._push_what_may_go()
        else:
            self._gather_inside(index)

    def _gather_inside(self, index: int) -> None:
        self._ends[index] = self._inside.take(self._now_s, self._cluster.inside_s(self._sums[index].size))

    def _push_what_may_go(self) -> None:
        for number, queue in enumerate(self._queues):
            while (head := self._heads[number]) is not None and self._may_go(head.flow):
                self._heads[number] = next(queue, None)
                self._under_way[head.flow.by_helpers] += 1
                into = self._helper_in if head.flow.by_helpers else self._worker_in
                self._move(head, self._worker_out, into, head.flow.away, head.flow.inward, self._return)

    def _may_go(self, flow: _Flow) -> bool:
        return self._ready[flow.bucket] and self._under_way[flow.by_helpers] < flow.credits

    def _return(self, one: _Round) -> None:
        out = self._helper_out if one.flow.by_helpers else self._worker_out
        self._move(one, out, self._worker_in, one.flow.inward, one.flow.away, self._end)

    def _end(self, one: _Round) -> None:
        self._under_way[one.flow.by_helpers] -= 1
        self._left[one.flow.bucket] -= 1
        if not self._left[one.flow.bucket]:
            self._gather_inside(one.flow.bucket)
        self._push_what_may_go()

    def _move(
        self, one: _Round, out: _Lane, into: _Lane, leaving: int, reaching: int, then: Callable[[_Round], None]
    ) -> None:
        """Send a round through a lane out and a lane in; the second one begins as soon as the first byte is there."""
        link = self._cluster.link
        out_s = link.busy_s(leaving * one.chunk_bytes, leaving)
        last_byte_s = out.take(self._now_s, out_s) + link.latency_s

        def arrive() -> None:
            through_s = into.take(self._now_s, link.busy_s(reaching * one.chunk_bytes, reaching))
            self._at(max(through_s, last_byte_s), partial(then, one))

        self._at(last_byte_s - out_s, arrive)


def _rounds(bucket: int, size: int, cluster: Cluster, window: Window, level: bool) -> Iterator[_Round]:
    """Yield the rounds of a bucket, of each kind of server in the order in which they are pushed."""
    shards = _shards(size, cluster)
    largest = max((shard.count for shard in shards), default=0)
    chunk_bytes = chunk_of(largest, cluster, window) if level else window.chunk_bytes
    number = -(-largest // chunk_bytes)
    for flow in _flows(bucket, shards, cluster, window.bytes // chunk_bytes):
        if level:
            chunk_bytes = -(-flow.shard_bytes // number)
        for start in range(0, flow.shard_bytes, chunk_bytes):
            yield _Round(flow, min(chunk_bytes, flow.shard_bytes - start))


def chunk_of(shard_bytes: int, cluster: Cluster, window: Window) -> int:
    """Return the bytes of a chunk of the largest shard: what the engine takes, or more where messages cost more."""
    message = _WEIGHT * round(cluster.link.message_s * cluster.link.bytes_per_s)
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
        # A worker's own part of its own shard does not travel. Where not all serve, a busiest one is one that does not.
        away = len(by_workers) - (len(by_workers) == workers)
        yield _Flow(bucket, False, max(by_workers), away, workers - 1, credits)
