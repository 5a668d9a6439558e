"""Chooses how many bytes a worker may have in flight to one server; each sum that comes back is a credit to send more.

    window = choose_window(workers=4, servers=4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    window.chunk_bytes, window.chunks

Workers that push as fast as they can fill the queue of a server's switch port and lose packets. Measured with 4 workers
and 4 helpers: 81 % of the link at 200 Mbit/s and 64 % at 300, against 99 % and 98 % with 4 chunks of 32 KiB in flight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

# Bytes that a link carries in the time of one more message. At 100 and 200 Mbit/s, 64 to 128 were the fastest, by 1 to
# 2 % of a lone sum; 256 used a tenth less processor time.
MESSAGE_BYTES = 96
_CHUNK_BYTES = 32 << 10
# The most chunks of a large shard: half a percent of its time for fewer messages.
_CHUNKS_OF_A_SHARD = 192
_LEAST_CHUNK_BYTES = 4 << 10
_MOST_CHUNK_BYTES = 256 << 10
# A chunk occupies its link for at least this long. Below it the processor time of each message, some microseconds,
# shows.
_CHUNK_S = 20e-6
# The time of one more message as the links show it: `MESSAGE_BYTES` at 200 Mbit/s.
_MESSAGE_S = 4e-6
# A busy host takes this long to notice that a sum is back; the bytes in flight must keep its link busy meanwhile.
_WAKE_S = 4e-3
_CHUNKS = 4
# Bytes per second, above 400 Gbit/s: chunks do not grow for faster links.
_FASTEST = 1e11
# One chunk goes, one comes back, and one covers the way of the credit.
_LEAST_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class Window:
    """At most `chunks` chunks of `chunk_bytes` in flight between a worker and a server, until their sums are back.

    Of smaller chunks there may be more (`under_way`): up to `few` bytes, or up to all bytes of the window if the links
    are unknown and `few` is None. `message` is the argument of `choose_chunk` for these links.

    >>> Window().bytes
    131072
    """

    chunk_bytes: int = _CHUNK_BYTES
    chunks: int = _CHUNKS
    message: int = MESSAGE_BYTES
    few: int | None = None

    def __post_init__(self) -> None:
        if min(self.chunk_bytes, self.chunks, self.message) < 1:
            raise ParallelError(f"{self}: all must be at least 1")

    @property
    def bytes(self) -> int:
        """The most bytes in flight between one worker and one server."""
        return self.chunk_bytes * self.chunks

    def under_way(self, chunk_bytes: int) -> int:
        """Return the most bytes in flight for chunks of this size.

        >>> [Window(few=24_000).under_way(size) for size in (4096, 24_064, 32_768)]
        [24000, 96256, 131072]

        Four chunks keep a link busy, and more would slow it down. The system sends the bytes of one connection in
        pieces of up to 64 KB, so with more chunks a server gets two rounds of one worker before the first of another.
        Measured with 160 tensors of 4 KB, 4 workers, 4 helpers, 200 Mbit/s and chunks of 4 KiB: 4, 8, 16 and 32
        chunks in flight took 26.8, 28.6, 32.1 and 39.0 ms.
        """
        return self.bytes if self.few is None else min(self.bytes, max(_CHUNKS * chunk_bytes, self.few))


def choose_chunk(shard_bytes: int, *, most: int, message: int = MESSAGE_BYTES) -> int:
    """Return the bytes of a chunk of a shard of `shard_bytes`: a multiple of 512, and at most `most`.

    >>> [choose_chunk(size, most=32 << 10) for size in (1000, 164_000, 1_562_500, 6_250_000)]
    [4096, 4096, 11776, 32256]

    A server starts when it has the first chunk of every worker, so a sum is one round of chunks later than its bytes
    need. Smaller chunks shorten that delay, but are more messages. `message` is the number of bytes that a link carries
    in the time of one more message, so the cost is chunk + message x shard / chunk, which is least at
    sqrt(message x shard). Large shards spend half a percent for fewer messages, because messages are servers' work.
    """
    chunk = max(math.isqrt(message * shard_bytes), shard_bytes // _CHUNKS_OF_A_SHARD)
    return min(most, max(_LEAST_CHUNK_BYTES, chunk // 512 * 512))


def choose_window(workers: int, servers: int, *, queue_bytes: int, bandwidth: float, latency: float) -> Window:
    """Return a window whose chunks from all `workers` fit in a server's queue, and keep the links busy.

    >>> choose_window(4, 4, queue_bytes=1 << 20, bandwidth=23.8e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=4, message=96, few=23800)
    >>> choose_window(8, 8, queue_bytes=1 << 20, bandwidth=11.9e6, latency=5e-5)
    Window(chunk_bytes=32768, chunks=3, message=96, few=5950)

    `queue_bytes` is the buffer of a switch port, beyond which packets are dropped. `bandwidth` is a host's bytes per
    second in each direction, `latency` the seconds of one way.

    The limit is chunks x chunk x workers < queue. Up to it the window covers the bytes that a link carries while a
    chunk goes and its sum comes back, and one chunk that is being summed. So the window grows on long, fast links. On
    fast links chunks grow as well, up to 256 KiB (not measured).

    A window has at least three chunks: in simulation two cost 3 to 6 % even with every host on time. Rather than fewer,
    chunks get smaller, down to a quarter. If even that exceeds the limit, so many workers cannot share one port without
    occasional losses, and smaller messages would cost more than these. Raises `ParallelError` for impossible figures.
    """
    if workers < 1 or servers < 1 or queue_bytes < 1 or bandwidth <= 0 or latency < 0:
        raise ParallelError(
            f"{workers} workers, {servers} servers, queue_bytes {queue_bytes}, bandwidth {bandwidth}, latency {latency}"
            ": counts must be at least 1, the bandwidth above 0 and the latency not negative"
        )
    # Strictly below the queue: at the edge, 8 workers x 4 chunks x 32 KiB into 1 MiB, packets were lost.
    allowed = (queue_bytes - 1) // workers
    chunk = _CHUNK_BYTES
    while chunk < min(_MOST_CHUNK_BYTES, bandwidth * _CHUNK_S):
        chunk *= 2
    least = chunk // 4
    while chunk > least and allowed // chunk < _LEAST_CHUNKS:
        chunk //= 2
    # The bandwidth-delay product of the round trip, per server.
    needed = math.ceil(2 * latency * bandwidth / servers / chunk) + 1
    chunks = max(_LEAST_CHUNKS, min(max(_CHUNKS, needed), allowed // chunk))
    few = math.ceil(bandwidth * _WAKE_S / servers)
    return Window(chunk, chunks, max(MESSAGE_BYTES, int(bandwidth * _MESSAGE_S)), few)


def largest_window(workers: int, servers: int, *, queue_bytes: int) -> Window:
    """Return the window for links of any speed, which limits only the memory of both ends.

    >>> largest_window(2, 2, queue_bytes=1 << 20).bytes
    393216
    """
    return choose_window(workers, servers, queue_bytes=queue_bytes, bandwidth=_FASTEST, latency=0.0)
