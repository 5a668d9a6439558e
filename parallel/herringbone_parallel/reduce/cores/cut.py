"""Cuts a buffer into lanes (one for each rank of a host), lanes into shards (one for each server), shards into chunks.

    buffer   |<------ lane 0 ------>|<------ lane 1 ------>|      lane j is carried to the servers by local rank j
    lane 0   |<- shard 0 ->|<- shard 1 ->|<- shard 2 ->|          shard s is summed by server s
    shard 0  |c0|c1|c2|c3|..                                      one message carries one chunk

All ranks compute the same cut and the same order of chunks without any message: chunk 0 of each shard of a lane, then
chunk 1 of each shard, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from herringbone_parallel.core.sums.credits import Window, choose_chunk
from herringbone_parallel.core.sums.shards import Shard, shard_map

# Lanes and shards start at multiples of this many elements, so that no two of them share a cache line of 64 bytes.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk `number` of shard `shard` of a lane: `count` elements of the buffer, beginning with element `offset`."""

    shard: int
    number: int
    offset: int
    count: int


Lane = tuple[Shard, ...]


# Cached, because a training submits buffers of the same sizes in every step.
@lru_cache(maxsize=256)
def cut_lanes(count: int, lanes: int, hosts: int, helpers: int, message: int) -> tuple[Lane, ...]:
    """Return each lane's shards, their offsets counted from the buffer's start. Pure.

    >>> cut_lanes(256, lanes=2, hosts=1, helpers=0, message=1)
    ((Shard(server=0, offset=0, count=128),), (Shard(server=0, offset=128, count=128),))

    The servers of a lane are the helpers, then the lane's rank on each host. On a lone host, the rank itself is the
    server.
    """
    return tuple(
        tuple(
            Shard(shard.server, lane.offset + shard.offset, shard.count)
            for shard in _lane_shards(lane.count, hosts, helpers, message)
        )
        for lane in _slices(count, lanes)
    )


def most_elements(lanes: tuple[Lane, ...], wire_size: int, window: Window, hosts: int) -> int:
    """Return the number of elements of the largest chunk of a buffer with these lanes. Pure."""
    if hosts == 1:
        # Nothing crosses a network, so no chunk needs to be small.
        return window.chunk_bytes // wire_size
    largest = max((shard.count for lane in lanes for shard in lane), default=0)
    return choose_chunk(largest * wire_size, most=window.chunk_bytes, message=window.message) // wire_size


def chunks_of(lane: Lane, elements: int) -> tuple[Chunk, ...]:
    """Return a lane's chunks of at most `elements` elements, in the order in which all ranks process them. Pure.

    >>> [(chunk.offset, chunk.count) for chunk in chunks_of((Shard(0, 0, 256), Shard(1, 256, 128)), 128)]
    [(0, 128), (256, 64), (128, 128), (320, 64)]
    """
    rounds = max((-(-shard.count // elements) for shard in lane), default=0)
    sizes = [chunk_elements(shard.count, rounds, elements) for shard in lane]
    return tuple(
        Chunk(index, number, shard.offset + number * size, min(size, shard.count - number * size))
        for number in range(rounds)
        for index, (shard, size) in enumerate(zip(lane, sizes, strict=True))
        if number * size < shard.count
    )


def chunk_elements(count: int, rounds: int, most: int) -> int:
    """Return the size of the chunks of a shard of `count` elements in a lane whose largest has `rounds` chunks. Pure.

    Every shard is cut into the same number of chunks: a server with a third of the work gets a third of the bytes in
    every round trip, and all shards end together. With chunks of equal size, small shards end early, and then half of
    the links are idle.
    """
    # Rounded up to whole units, so that chunks start at cache lines, too.
    elements = -(-count // rounds)
    return min(most, -(-elements // ALIGN) * ALIGN)


def _slices(count: int, lanes: int) -> tuple[Shard, ...]:
    # Lanes consist of whole units of ALIGN elements; only the last unit may be partial.
    units = -(-count // ALIGN)
    ends = [min(count, units * (lane + 1) // lanes * ALIGN) for lane in range(lanes)]
    return tuple(
        Shard(lane, start, end - start) for lane, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    )


def _lane_shards(count: int, hosts: int, helpers: int, message: int) -> tuple[Shard, ...]:
    if count == 0:
        return ()
    if hosts == 1:
        return (Shard(helpers, 0, count),)
    return shard_map(count, hosts, helpers, align=ALIGN, message=message)
