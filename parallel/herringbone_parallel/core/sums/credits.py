"""How much a worker may have under way to one server: the sums that come back are the credits to send more.

    window = choose_window(workers=4, servers=4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    window.chunk_bytes, window.chunks

Workers that push as fast as they can meet at a server's port, fill its queue and lose packets: measured with 4 workers
and 4 helpers, 81 % of the link at 200 Mbit/s and 64 % at 300, against 99 % and 98 % with 4 chunks of 32 KiB under way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

# What did best at 100 and 200 Mbit/s: 64 to 128, by a percent or two of a lone sum; 256 took a tenth less processor.
MESSAGE_BYTES = 96
_CHUNK_BYTES = 32 << 10
_CHUNKS_OF_A_SHARD = 192
_LEAST_CHUNK_BYTES = 4 << 10
_MOST_CHUNK_BYTES = 256 << 10
# A chunk is on its link at least so long, or the host's work for one more message shows: microseconds each.
_CHUNK_S = 20e-6
# That work, as the links show it: `MESSAGE_BYTES` at 200 Mbit/s.
_MESSAGE_S = 4e-6
# What a busy host needs to notice that a sum is back: so long a link has enough to carry.
_WAKE_S = 4e-3
_CHUNKS = 4
# Bytes per second, beyond 400 Gbit/s: chunks are no larger for what is faster.
_FASTEST = 1e11
_LEAST_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class Window:
    """At most `chunks` chunks of `chunk_bytes` between a worker and a server, until their sums are back.

    Of smaller chunks there may be more, `under_way`: up to `few` bytes, or all of these where links are not known
    and it is None. `message` is `choose_chunk`'s, for these links.

    >>> Window().bytes
    131072
    """

    chunk_bytes: int = _CHUNK_BYTES
    chunks: int = _CHUNKS
    message: int = MESSAGE_BYTES
    few: int | None = None

    def __post_init__(self) -> None:
        if min(self.chunk_bytes, self.chunks, self.message) < 1:
            raise ParallelError(f"{self}: all are at least 1")

    @property
    def bytes(self) -> int:
        """What may be under way between one worker and one server."""
        return self.chunk_bytes * self.chunks

    def under_way(self, chunk_bytes: int) -> int:
        """Return the bytes of chunks of that size that may be under way.

        >>> [Window(few=24_000).under_way(size) for size in (4096, 24_064, 32_768)]
        [24000, 96256, 131072]

        Four chunks keep a link busy, and no more are wanted: what a system has of one connection it sends as one, up
        to 64 KB, so that a server has two rounds of one worker before the first of another. Measured, 160 tensors of
        4 KB between 4 workers and 4 helpers at 200 Mbit/s, by chunks of 4 KiB: 4, 8, 16 and 32 of them 26.8, 28.6, 32.1
        and 39.0 ms.
        """
        return self.bytes if self.few is None else min(self.bytes, max(_CHUNKS * chunk_bytes, self.few))


def choose_chunk(shard_bytes: int, *, most: int, message: int = MESSAGE_BYTES) -> int:
    """Return how many bytes the chunks of a shard of `shard_bytes` have: a multiple of 512, and at most `most`.

    >>> [choose_chunk(size, most=32 << 10) for size in (1000, 164_000, 1_562_500, 6_250_000)]
    [4096, 4096, 11776, 32256]

    All sums are back later than the bytes alone need, by the time of one round of chunks: a server begins when it has
    the first chunk of everybody. Smaller chunks shorten that, and are more messages. With `message`, the bytes that a
    link carries in the time that one more message costs, chunk + message x shard / chunk is least at
    sqrt(message x shard). Of large shards half a percent is given for fewer messages: they are the servers' work.
    """
    chunk = max(math.isqrt(message * shard_bytes), shard_bytes // _CHUNKS_OF_A_SHARD)
    return min(most, max(_LEAST_CHUNK_BYTES, chunk // 512 * 512))


def choose_window(workers: int, servers: int, *, queue_bytes: int, bandwidth: float, latency: float) -> Window:
    """Return a window whose chunks from all `workers` fit in a server's queue, and keep the links busy.

    >>> choose_window(4, 4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=4, message=96, few=23800)
    >>> choose_window(8, 8, queue_bytes=1 << 20, bandwidth=11.9e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=3, message=96, few=5950)

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
    chunks = max(_LEAST_CHUNKS, min(max(_CHUNKS, needed), allowed // chunk))
    few = math.ceil(bandwidth * _WAKE_S / servers)
    return Window(chunk, chunks, max(MESSAGE_BYTES, int(bandwidth * _MESSAGE_S)), few)


def largest_window(workers: int, servers: int, *, queue_bytes: int) -> Window:
    """Return the window of links so fast that their rate is no bound: what both ends have memory for.

    >>> largest_window(2, 2, queue_bytes=1 << 20).bytes
    393216
    """
    return choose_window(workers, servers, queue_bytes=queue_bytes, bandwidth=_FASTEST, latency=0.0)
