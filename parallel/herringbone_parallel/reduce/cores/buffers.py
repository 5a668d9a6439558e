"""The buffers that are being summed, and cursors that walk over their chunks."""

from __future__ import annotations

import ctypes

import numpy as np

from herringbone_parallel.reduce.cores.base import CoreConfig, Submission
from herringbone_parallel.reduce.cores.cut import Chunk, chunks_of
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.elements import Array, Element


def memory(address: int, size: int) -> memoryview:
    """Return `size` bytes at an address, which whoever gave it keeps alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Buffer:
    """One submitted buffer: how far the chunks of this rank's own lane are, and what is left until it is done.

    `ready` and `final` count, for each shard of the own lane, the chunks whose sum over this host's ranks, and over
    all, is in the buffer.
    """

    def __init__(self, sequence: int, submission: Submission, config: CoreConfig) -> None:
        self.sequence, self.submission = sequence, submission
        self._bytes = memory(submission.address, submission.count * submission.element.size)
        self._chunks = [chunks_of(lane, submission.chunk) for lane in submission.lanes]
        own = config.local < config.lanes
        shards = submission.lanes[config.local] if own else ()
        self._of_server = {
            shard.server: tuple(chunk for chunk in self._chunks[config.local] if chunk.shard == place)
            for place, shard in enumerate(shards)
        }
        self.ready, self.final = [0] * len(shards), [0] * len(shards)
        self.remaining = sum(map(len, self._chunks))
        if own and config.locals > 1:
            self.remaining += len(self._chunks[config.local])  # each is handed on to the other ranks of the host

    def chunks(self, lane: int, server: int | None) -> tuple[Chunk, ...]:
        """Return a lane's chunks; with `server`, those of the own lane that it sums."""
        return self._chunks[lane] if server is None else self._of_server.get(server, ())

    def view(self, chunk: Chunk) -> memoryview:
        size = self.submission.element.size
        return self._bytes[chunk.offset * size : (chunk.offset + chunk.count) * size]

    def values(self, chunk: Chunk) -> Array:
        """Return the chunk's elements as numpy stores them; writing to them writes to the buffer."""
        return values(self.view(chunk), self.submission.element)

    def header(self, chunk: Chunk, length: int) -> Header:
        how = self.submission
        return Header(
            Kind.PUSH, how.element, how.wire, length, self.sequence, chunk.offset, chunk.count, divisor=how.divisor
        )


def values(data: memoryview, element: Element) -> Array:
    """Return bytes as numpy stores that type."""
    return np.frombuffer(data, element.stored)


class Cursor:
    """A place in the sequence of all buffers' chunks: of a lane, or of the own lane's chunks that one server sums."""

    def __init__(self, buffers: Buffers, lane: int, server: int | None = None) -> None:
        self._buffers, self._lane, self._server = buffers, lane, server
        self._sequence = self._index = 0

    def peek(self) -> tuple[Buffer, Chunk] | None:
        """Return the next chunk with its buffer, or None before it is submitted."""
        while self._sequence < self._buffers.submitted:
            # A buffer that is gone is done, and a cursor has nothing left to do in it.
            buffer = self._buffers.pending.get(self._sequence)
            chunks = buffer.chunks(self._lane, self._server) if buffer else ()
            if buffer and self._index < len(chunks):
                return buffer, chunks[self._index]
            self._sequence, self._index = self._sequence + 1, 0
        return None

    def advance(self) -> None:
        self._index += 1


class Buffers:
    """The buffers under way, by number."""

    def __init__(self) -> None:
        self.pending: dict[int, Buffer] = {}
        self.submitted = 0
        # Buffers are done nearly in order: all below `done_below`, and these.
        self._done: set[int] = set()
        self.done_below = 0

    def add(self, submission: Submission, config: CoreConfig) -> Buffer:
        buffer = Buffer(self.submitted, submission, config)
        self.pending[buffer.sequence] = buffer
        self.submitted += 1
        return buffer

    def finish(self, sequence: int) -> None:
        """The buffer's sum is in place."""
        self.pending.pop(sequence, None)
        self._done.add(sequence)
        while self.done_below in self._done:
            self._done.remove(self.done_below)
            self.done_below += 1

    def is_done(self, sequence: int) -> bool:
        return sequence < self.done_below or sequence in self._done
