"""The windows of a job: how many bytes may be in flight between its processes. Pure.

A job starts with a small window that keeps slow links busy, because nothing has been measured yet. Buffers are
allocated once, for the largest window that can be needed: pages that are never written cost no memory.
"""

from __future__ import annotations

from dataclasses import replace

from herringbone_parallel.core.sums.credits import Window, choose_window, largest_window
from herringbone_parallel.core.sums.links import Cost, host_link
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.reduce.cores.base import Limit

# Nothing crosses a network, so chunks may be large.
_LONE_HOST = Window(256 << 10, 4)
# The least that a switch's port queues, as far as we know. Hosts that overflow the queue lose packets.
_QUEUE_BYTES = 1 << 20
_LOCAL_CHUNKS = (8, 64)
_MIN_LARGEST_LOCAL_CHUNKS = 4


def first_window(hosts: int, helpers: int) -> Window:
    """Return the window for links that have not been measured; it is smaller if many hosts send to one port.

    >>> first_window(4, 4)
    Window(chunk_bytes=32768, chunks=4, message=96, few=None)
    """
    if hosts == 1:
        return _LONE_HOST
    window = choose_window(hosts, _servers(hosts, helpers), queue_bytes=_QUEUE_BYTES, bandwidth=1.0, latency=0.0)
    return replace(window, few=None)


def memory_window(hosts: int, helpers: int) -> Window:
    """Return the largest window that may be needed, for which memory is laid out."""
    return _LONE_HOST if hosts == 1 else largest_window(hosts, _servers(hosts, helpers), queue_bytes=_QUEUE_BYTES)


def suited_window(hosts: int, helpers: int, cost: Cost) -> Window:
    """Return the window for hosts between which sums have this cost, at most `memory_window`.

    >>> suited_window(2, 0, Cost(alpha_s=1e-4, beta_s=4e-8)).chunk_bytes
    32768
    >>> suited_window(2, 0, Cost(alpha_s=4e-5, beta_s=1e-10)).chunk_bytes
    131072
    """
    link = host_link(cost, share=busiest_share(hosts, helpers))
    window = choose_window(
        hosts,
        _servers(hosts, helpers),
        queue_bytes=_QUEUE_BYTES,
        bandwidth=link.bytes_per_s,
        latency=link.latency_s,
    )
    # The rings were allocated before anything was measured, so the window must fit into them.
    return replace(window, chunks=min(window.chunks, memory_window(hosts, helpers).bytes // window.chunk_bytes))


def server_limit(window: Window) -> Limit:
    """Return the limit for chunks in flight between a worker and a server."""
    return Limit.of(window.bytes, window.chunks)


def local_limit(hosts: int, helpers: int, window: Window, chunk_bytes: int) -> Limit:
    """Return the limit for one rank's contributed chunks of a lane: enough for the windows of all servers."""
    # Twice the bytes: fp32 that travels in 16 bits takes twice the memory that it takes on the wire.
    if hosts == 1:
        return Limit.of(2 * window.bytes, window.chunks)
    least, most = _LOCAL_CHUNKS
    chunks = max(least, min(most, 2 * window.chunks * (helpers + hosts)))
    return Limit.of(2 * max(chunks * window.chunk_bytes, _MIN_LARGEST_LOCAL_CHUNKS * chunk_bytes), chunks)


def _servers(hosts: int, helpers: int) -> int:
    return helpers if helpers >= hosts else helpers + hosts
