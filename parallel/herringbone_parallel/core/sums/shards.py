"""Which server sums which part of a bucket, so that no host has more to send than theory says it must.

    shards = shard_map(6_250_000, workers=4, helpers=2)
    sent_bytes(shards, workers=4, helpers=2, element_bytes=4)       # per host, helpers first

A bucket of gradients is cut in contiguous shards, one per server. Every worker sends each shard to its server, which
adds them up and sends the sum back to all: two hops whatever the number of hosts. Servers are helpers, hosts that do
nothing else, and the workers themselves. For n workers, k helpers, M bytes, and links of B bytes a second each way:

              a helper's shard        a worker's shard       busiest host sends     seconds
    k = 0     -                       M / n                  2 (n - 1) M / n        the ring's, in two hops
    k < n     2 (n - 1) M / W         (n - k) M / W          2 n (n - 1) M / W      / B, where W = n^2 + k n - 2 k
    k >= n    M / k                   nothing                M                      M / B: no scheme sends less

The middle row makes what a helper sends, n times its shard, equal to what a worker sends: the other shards once, and
the sum of its own to n - 1 others (BytePS, OSDI 2020, theorem 1). With 2 workers all three rows come to M: helpers
gain nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError


@dataclass(frozen=True, slots=True)
class Shard:
    """`count` elements from `offset` on, summed by `server`: helpers have the lowest numbers, then come the workers."""

    server: int
    offset: int
    count: int


def shard_map(count: int, workers: int, helpers: int, *, align: int = 1, message: int = 1024) -> tuple[Shard, ...]:
    """Cut `count` elements into one shard per server, in the order of the servers; empty shards are left out.

    >>> [(shard.offset, shard.count) for shard in shard_map(800, workers=2, helpers=1, message=1)]
    [(0, 400), (400, 200), (600, 200)]

    Every shard starts at a multiple of `align` and is within `align` elements of its share; a lone worker keeps it all.
    `message` is how many elements a link carries in the time that one more message costs. In a round that small nothing
    overlaps: a worker's s messages, then a server's n, so that s servers take s + n messages and count + n count / s
    elements, which is least for s = sqrt(n count / message). Where that is fewer servers than there are, only so many
    sum, helpers first. The default is 4 KiB of fp32, about what was measured at 200 Mbit/s between busy
    hosts.
    """
    _check(workers, helpers)
    if count < 0 or align < 1 or message < 1:
        raise ParallelError(f"{count} elements, align {align}, message {message}: at least 0, 1 and 1")
    units = -(-count // align)
    shards, filled, weighed = [], 0, 0
    weights = _weights(count, workers, helpers, message)
    total = sum(weights)
    # Cutting at rounded running sums, not rounding each share, keeps every shard within one unit and loses none.
    for server, weight in enumerate(weights):
        weighed += weight
        end = min(count, units * weighed // total * align)
        if end > filled:
            shards.append(Shard(server, filled, end - filled))
            filled = end
    return tuple(shards)


def sent_bytes(shards: Sequence[Shard], workers: int, helpers: int, *, element_bytes: int) -> tuple[int, ...]:
    """Return what each host sends to sum one bucket, helpers first; each receives exactly as much.

    >>> sent_bytes(shard_map(800, workers=4, helpers=4, message=1), workers=4, helpers=4, element_bytes=4)
    (3200, 3200, 3200, 3200, 3200, 3200, 3200, 3200)
    """
    _check(workers, helpers)
    own = [0] * (helpers + workers)
    for shard in shards:
        own[shard.server] += shard.count
    count = sum(own)
    sent = [workers * shard for shard in own[:helpers]]
    # A worker sends all but its own shard to the servers, and the sum of its own to the other workers.
    sent += [count - shard + (workers - 1) * shard for shard in own[helpers:]] if workers > 1 else [count - own[-1]]
    return tuple(elements * element_bytes for elements in sent)


def busiest_share(workers: int, helpers: int) -> float:
    """Return the bytes that the busiest host sends, as a multiple of the gradients': the theory's time x B / M.

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
    worth = max(1, math.isqrt(workers * count // message))
    if helpers >= workers or worth <= helpers:
        return [1] * min(helpers, worth)
    # So many of the workers serve; all of them is the row of the theory. A helper sends n times its shard, a worker
    # that serves the other shards once and its own n - 1 times: equal for these shares.
    serving = min(workers, worth - helpers)
    return [workers - 2 + serving] * helpers + [workers - helpers] * serving


def _check(workers: int, helpers: int) -> None:
    if workers < 1 or helpers < 0:
        raise ParallelError(f"{workers} workers and {helpers} helpers: at least 1 and 0")
