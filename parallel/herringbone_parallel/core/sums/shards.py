"""Divides a bucket among the servers that sum it, so that no host sends more than the theoretical minimum.

    shards = shard_map(6_250_000, workers=4, helpers=2)
    sent_bytes(shards, workers=4, helpers=2, element_bytes=4)       # per host, helpers first

A bucket of gradients is cut into contiguous shards, one per server. Every worker sends each shard to its server. The
server adds them up and sends the sum back to all workers: two hops for any number of hosts. Servers are helpers, hosts
that do nothing else, and the workers themselves. For n workers, k helpers, M bytes, and links of B bytes per second in
each direction:

              a helper's shard        a worker's shard       busiest host sends     seconds
    k = 0     -                       M / n                  2 (n - 1) M / n        the ring's, in two hops
    k < n     2 (n - 1) M / W         (n - k) M / W          2 n (n - 1) M / W      / B, where W = n^2 + k n - 2 k
    k >= n    M / k                   nothing                M                      M / B: no scheme sends less

In the middle row a helper sends as much as a worker. A helper sends n times its shard; a worker sends all other shards
once, and the sum of its own shard to n - 1 workers (BytePS, OSDI 2020, theorem 1). With 2 workers all three rows are M,
so helpers gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError


@dataclass(frozen=True, slots=True)
class Shard:
    """`count` elements from `offset` on, summed by `server`; helpers have the lowest numbers, workers follow."""

    server: int
    offset: int
    count: int


def shard_map(count: int, workers: int, helpers: int, *, align: int = 1, message: int = 1024) -> tuple[Shard, ...]:
    """Cut `count` elements into one shard per server, in the order of the servers, without empty shards.

    >>> [(shard.offset, shard.count) for shard in shard_map(800, workers=2, helpers=1, message=1)]
    [(0, 400), (400, 200), (600, 200)]

    Every shard starts at a multiple of `align` and is within `align` elements of its share; a lone worker keeps all.
    `message` is the number of elements that a link carries in the time of one more message. Small sums do not overlap:
    a worker sends s messages to s servers, then a server sends n. That takes the time of s + n messages and
    count + n count / s elements, which is least for s = sqrt(n count / message). If that is fewer than all servers,
    only so many sum, helpers first. The default is 4 KiB of fp32, about the value measured at 200 Mbit/s between busy
    hosts. Raises `ParallelError` for impossible counts.
    """
    _check(workers, helpers)
    if count < 0 or align < 1 or message < 1:
        raise ParallelError(f"{count} elements, align {align}, message {message}: at least 0, 1 and 1")
    units = -(-count // align)
    shards, filled, running = [], 0, 0
    weights = _weights(count, workers, helpers, message)
    total = sum(weights)
    # Cut at rounded running sums: every shard is within one unit of its share, and the shards add up to `count`.
    # Rounded single shares would not.
    for server, weight in enumerate(weights):
        running += weight
        end = min(count, units * running // total * align)
        if end > filled:
            shards.append(Shard(server, filled, end - filled))
            filled = end
    return tuple(shards)


def sent_bytes(shards: Sequence[Shard], workers: int, helpers: int, *, element_bytes: int) -> tuple[int, ...]:
    """Return the bytes that each host sends to sum one bucket, helpers first; each host receives as many.

    >>> sent_bytes(shard_map(800, workers=4, helpers=4, message=1), workers=4, helpers=4, element_bytes=4)
    (3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200)
    """
    _check(workers, helpers)
    served = [0] * (helpers + workers)
    for shard in shards:
        served[shard.server] += shard.count
    count = sum(served)
    sent = [workers * shard for shard in served[:helpers]]
    # A worker sends all shards but its own to their servers, and the sum of its own to the other workers.
    if workers > 1:
        sent += [count - shard + (workers - 1) * shard for shard in served[helpers:]]
    else:
        sent.append(count - served[-1])
    return tuple(elements * element_bytes for elements in sent)


def busiest_share(workers: int, helpers: int) -> float:
    """Return the bytes that the busiest host sends per byte of gradients: the table's last column times B / M.

    >>> [busiest_share(4, helpers) for helpers in (0, 2, 4, 8)]
    [1.5, 1.2, 1.0, 1.0]
    """
    _check(workers, helpers)
    if workers == 1:
        return 0.0
    if helpers >= workers:
        return 1.0
    return 2 * workers * (workers - 1) / (workers * workers + helpers * workers - 2 * helpers)


def _weights(count: int, workers: int, helpers: int, message: int) -> list[int]:
    """Return each server's share of the elements as a whole number, by server."""
    if workers == 1:
        return [0] * helpers + [1]
    most_servers = max(1, math.isqrt(workers * count // message))
    if helpers >= workers or most_servers <= helpers:
        return [1] * min(helpers, most_servers)
    # `serving` workers serve; the table's middle row has all of them. A helper sends n times its shard. A serving
    # worker sends the other shards once and its own n - 1 times. With these weights both send the same.
    serving = min(workers, most_servers - helpers)
    return [workers - 2 + serving] * helpers + [workers - helpers] * serving


def _check(workers: int, helpers: int) -> None:
    if workers < 1 or helpers < 0:
        raise ParallelError(f"{workers} workers and {helpers} helpers: at least 1 and 0 are needed")
