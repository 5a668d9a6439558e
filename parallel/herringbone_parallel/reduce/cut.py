"""How a buffer is cut: a lane for each rank of a host, in a lane a shard for each server, in a shard chunks.

    buffer   |<------ lane 0 ------>|<------ lane 1 ------>|      lane j is carried to the servers by local rank j
    lane 0   |<- shard 0 ->|<- shard 1 ->|<- shard 2 ->|          shard s is summed by server s
    shard 0  |c0|c1|c2|c3|..                                      a chunk is what one message carries

The chunks of a lane have an order that all ranks agree on without a word: chunk 0 of each shard, then chunk 1 of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from herringbone_parallel.core.shards import Shard, shard_map

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


def chunks_of(lane: Lane, elements: int) -> tuple[Chunk, ...]:
    """Return a lane's chunks of at most `elements` each, in the order that all ranks agree on. Pure.

    >>> [chunk.offset for chunk in chunks_of((Shard(0, 0, 20), Shard(1, 20, 8)), 10)]
    [0, 20, 10]
    """
    rounds = max((-(-shard.count // elements) for shard in lane), default=0)
    return tuple(
        Chunk(place, turn, shard.offset + turn * elements, min(elements, shard.count - turn * elements))
        for turn in range(rounds)
        for place, shard in enumerate(lane)
        if turn * elements < shard.count
    )


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
