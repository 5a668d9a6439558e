"""How much a worker may have under way to one server: the sums that come back are the credits to send more.

    window = choose_window(workers=4, servers=4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    window.chunk_bytes, window.chunks

Workers that push as fast as they can meet at a server's port, fill its queue and lose packets: measured with 4 workers
and 4 helpers, 81 % of the link at 200 Mbit/s and 64 % at 300, against 99 % and 98 % with 4 chunks of 32 KiB under way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from herringbone_spec.errors import ParallelError

# What did best at 100 and 200 Mbit/s: 64 to 128, by a percent or two of a lone sum; 256 took a tenth less processor.
MESSAGE_BYTES = 96
_CHUNK_BYTES = 32 << 10
_LEAST_CHUNK_BYTES = 4 << 10
_MOST_CHUNK_BYTES = 256 << 10
# A chunk is on its link at least so long, or the host's work for one more message shows: microseconds each.
_CHUNK_S = 20e-6
_CHUNKS = 4
_LEAST_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class Window:
    """At most `chunks` chunks of `chunk_bytes` between a worker and a server, until their sums are back.

    Of smaller chunks there may be more: it is the bytes that count.

    >>> Window().bytes
    131072
    """

    chunk_bytes: int = _CHUNK_BYTES
    chunks: int = _CHUNKS

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 or self.chunks < 1:
            raise ParallelError(f"{self}: both are at least 1")

    @property
    def bytes(self) -> int:
        """What may be under way between one worker and one server."""
        return self.chunk_bytes * self.chunks


def choose_chunk(shard_bytes: int, *, most: int, message: int = MESSAGE_BYTES) -> int:
    """Return how many bytes the chunks of a shard of `shard_bytes` have: a multiple of 512, and at most `most`.

    >>> [choose_chunk(size, most=32 << 10) for size in (1000, 164_000, 1_562_500, 6_250_000)]
    [4096, 4096, 11776, 24064]

    All sums are back later than the bytes alone need, by the time of one round of chunks: a server begins when it has
    the first chunk of everybody. Smaller chunks shorten that, and are more messages. With `message`, the bytes that a
    link carries in the time that one more message costs, chunk + message x shard / chunk is least at
    sqrt(message x shard).
    """
    return min(most, max(_LEAST_CHUNK_BYTES, math.isqrt(message * shard_bytes) // 512 * 512))


def choose_window(workers: int, servers: int, *, queue_bytes: int, bandwidth: float, latency: float) -> Window:
    """Return a window whose chunks from all `workers` fit in a server's queue, and keep the links busy.

    >>> choose_window(4, 4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=4)
    >>> choose_window(8, 8, queue_bytes=1 << 20, bandwidth=11.9e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=3)

    `queue_bytes` is what a port holds before it drops, `bandwidth` a host's bytes per second each way, `latency` the
    seconds one way. The rule is window x chunk x workers < queue. What a link carries while a chunk goes and its sum
    comes back must be under way too, with one chunk that is being summed: on long, fast links the window grows, up to
    the rule; on fast ones chunks are larger too, up to 256 KiB (not measured). Fewer than three chunks are no window:
    one goes, one comes back, and one is there for the credit's way (simulated, two cost 3 to 6 % even with every host
    on time), so rather than that the chunks get smaller, down to a quarter. Where even that breaks the rule, so many
    workers cannot share one port without a loss now and then, and smaller messages would cost more than those.
    """
    if workers < 1 or servers < 1 or queue_bytes < 1 or bandwidth <= 0 or latency < 0:
        raise ParallelError(
            f"{workers} workers, {servers} servers, queue_bytes {queue_bytes}, bandwidth {bandwidth}, latency {latency}"
            ": counts are at least 1, bandwidth is above 0 and latency not below it"
        )
    # Strictly below the queue: at the edge, 8 workers x 4 chunks x 32 KiB into 1 MiB, packets were lost.
    allowed = (queue_bytes - 1) // workers
    chunk = _CHUNK_BYTES
    while chunk < min(_MOST_CHUNK_BYTES, bandwidth * _CHUNK_S):
        chunk *= 2
    least = chunk // 4
    while chunk > least and allowed // chunk < _LEAST_CHUNKS:
        chunk //= 2
    needed = math.ceil(2 * latency * bandwidth / servers / chunk) + 1
    return Window(chunk, max(_LEAST_CHUNKS, min(max(_CHUNKS, needed), allowed // chunk)))
