"""What may be under way between the processes of a job: at first, at most, and once its links are known. Pure.

At first nobody has measured anything, and the least is taken that kept slow links busy. Memory is laid out for the
most, as it cannot be changed any more; what is not used of it is never touched.
"""

from __future__ import annotations

from dataclasses import replace

from herringbone_parallel.core.sums.credits import Window, choose_window, largest_window
from herringbone_parallel.core.sums.links import Cost, host_link
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.reduce.cores.base import Limit

_LONE_HOST = Window(256 << 10, 4)
# What a switch's port holds at least, as far as we know.
_QUEUE_BYTES = 1 << 20
_LOCAL_CHUNKS = (8, 64)
_LEAST_LOCAL_CHUNKS = 4


def first_window(hosts: int, helpers: int) -> Window:
    """Return the window for links that nobody has measured, less where many hosts meet.

    >>> first_window(4, 4)
    Window(chunk_bytes=32768, chunks=4, message=96, few=None)
    """
    if hosts == 1:
        return _LONE_HOST
    window = choose_window(hosts, _servers(hosts, helpers), queue_bytes=_QUEUE_BYTES, bandwidth=1.0, latency=0.0)
    return replace(window, few=None)


def most(hosts: int, helpers: int) -> Window:
    """Return the largest window that may be needed."""
    return _LONE_HOST if hosts == 1 else largest_window(hosts, _servers(hosts, helpers), queue_bytes=_QUEUE_BYTES)


def suited_window(hosts: int, helpers: int, cost: Cost) -> Window:
    """Return the window for hosts between which sums cost this, within `most`.

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
    return replace(window, chunks=min(window.chunks, most(hosts, helpers).bytes // window.chunk_bytes))


def limit_of(window: Window) -> tuple[int, Limit]:
    """Return the bytes of the largest chunk, and what may be under way between a worker and a server."""
    return window.chunk_bytes, Limit.of(window.bytes, window.chunks)


def local_limit(hosts: int, helpers: int, window: Window, chunk_bytes: int) -> Limit:
    """Return what each rank of a host may have given of a lane: enough for every server's window.

    Twice the bytes: fp32 that travels in 16 bits takes twice what it takes on the wire.
    """
    if hosts == 1:
        return Limit.of(2 * window.bytes, window.chunks)
    least, highest = _LOCAL_CHUNKS
    chunks = max(least, min(highest, 2 * window.chunks * (helpers + hosts)))
    return Limit.of(2 * max(chunks * window.chunk_bytes, _LEAST_LOCAL_CHUNKS * chunk_bytes), chunks)


def _servers(hosts: int, helpers: int) -> int:
    return helpers if helpers >= hosts else helpers + hosts
