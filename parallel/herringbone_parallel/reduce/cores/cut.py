"""How a buffer is cut: a lane for each rank of a host, in a lane a shard for each server, in a shard chunks.

    buffer   |<------ lane 0 ------>|<------ lane 1 ------>|      lane j is carried to the servers by local rank j
    lane 0   |<- shard 0 ->|<- shard 1 ->|<- shard 2 ->|          shard s is summed by server s
    shard 0  |c0|c1|c2|c3|..                                      a chunk is what one message carries

The chunks of a lane have an order that all ranks agree on without a word: chunk 0 of each shard, then chunk 1 of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from herringbone_parallel.core.sums.credits import Window, choose_chunk
from herringbone_parallel.core.sums.shards import Shard, shard_map

# Lanes and shards start at multiples of this many elements, so that no two of them share a cache line.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` elements of the buffer from `offset` on: chunk `number` of the shard at place `shard` of its lane."""

    shard: int
    number: int
    offset: int
    count: int


Lane = tuple[Shard, ...]


@lru_cache(maxsize=256)
def cut_lanes(count: int, lanes: int, hosts: int, helpers: int, message: int) -> tuple[Lane, ...]:
    """Return each lane's shards, their offsets counted from the buffer's start. Pure.

    >>> cut_lanes(256, lanes=2, hosts=1, helpers=0, message=1)
    ((Shard(server=0, offset=0, count=128),), (Shard(server=0, offset=128, count=128),))

    Servers of a lane are the helpers, then its rank on each host. A lone host has one server, its own rank.
    """
    return tuple(
        tuple(
            Shard(shard.server, lane.offset + shard.offset, shard.count)
            for shard in _lane_shards(lane.count, hosts, helpers, message)
        )
        for lane in _slices(count, lanes)
    )


def most_elements(lanes: tuple[Lane, ...], wire_size: int, window: Window, hosts: int) -> int:
    """Return the elements of the largest chunks of a buffer that was cut in these lanes. Pure."""
    if hosts == 1:
        return window.chunk_bytes // wire_size
    largest = max((shard.count for lane in lanes for shard in lane), default=0)
    return choose_chunk(largest * wire_size, most=window.chunk_bytes, message=window.message) // wire_size


def chunks_of(lane: Lane, elements: int) -> tuple[Chunk, ...]:
    """Return a lane's chunks of at most `elements` each, in the order that all ranks agree on. Pure.

    >>> [(chunk.offset, chunk.count) for chunk in chunks_of((Shard(0, 0, 256), Shard(1, 256, 128)), 128)]
    [(0, 128), (256, 64), (128, 128), (320, 64)]
    """
    rounds = max((-(-shard.count // elements) for shard in lane), default=0)
    sizes = [chunk_elements(shard.count, rounds, elements) for shard in lane]
    return tuple(
        Chunk(place, turn, shard.offset + turn * size, min(size, shard.count - turn * size))
        for turn in range(rounds)
        for place, (shard, size) in enumerate(zip(lane, sizes, strict=True))
        if turn * size < shard.count
    )


def chunk_elements(count: int, rounds: int, most: int) -> int:
    """Return the size of the chunks of a shard of `count` elements in a lane whose largest has `rounds` chunks. Pure.

    Every shard is cut in as many chunks: servers with a third of the work get a third of the bytes in every round trip,
    and all end together. With chunks of one size the small shards were done early, and the links half idle then.
    """
    each = -(-count // rounds)
    return min(most, -(-each // ALIGN) * ALIGN)


def _slices(count: int, lanes: int) -> tuple[Shard, ...]:
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
