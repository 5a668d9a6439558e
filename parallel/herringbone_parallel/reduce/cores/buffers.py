"""The buffers in flight, and cursors over their chunks. Only the I/O thread changes them."""

from __future__ import annotations

import ctypes

import numpy as np

from herringbone_parallel.reduce.cores.base import CoreConfig, Submission
from herringbone_parallel.reduce.cores.cut import Chunk, chunks_of
from herringbone_parallel.reduce.cores.messages import Header, Kind
from herringbone_parallel.reduce.elements import Array, Element


def memory(address: int, size: int) -> memoryview:
    """Return `size` bytes at an address. The caller guarantees that they stay mapped."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Buffer:
    """One submitted buffer and the progress of its chunks.

    `ready` and `final` count chunks for each shard of this rank's own lane: `ready` those that hold the sum over this
    host's ranks, `final` those that hold the sum over all hosts. The buffer is done when `remaining` is 0.
    """

    def __init__(self, sequence: int, submission: Submission, config: CoreConfig) -> None:
        self.sequence, self.submission = sequence, submission
        # The engine keeps the submitted array alive until the buffer is done.
        self._bytes = memory(submission.address, submission.count * submission.element.size)
        self._chunks = [chunks_of(lane, submission.chunk) for lane in submission.lanes]
        carries = config.local < config.lanes
        shards = submission.lanes[config.local] if carries else ()
        # The own lane's chunks by server, so that a server's cursor finds its next chunk without a search.
        self._of_server = {
            shard.server: tuple(chunk for chunk in self._chunks[config.local] if chunk.shard == index)
            for index, shard in enumerate(shards)
        }
        self.ready, self.final = [0] * len(shards), [0] * len(shards)
        # Sums over this host of 16-bit elements that travel as fp32: the buffer itself cannot hold them.
        network = config.members > 1 and carries
        is_wide = network and submission.wire is Element.FLOAT32 and submission.element is not Element.FLOAT32
        self._wide = np.empty(sum(shard.count for shard in shards), np.float32) if is_wide else None
        # The shards of a lane lie one behind the other in the buffer.
        self._wide_offset = shards[0].offset if shards else 0
        # Every chunk of every lane has to arrive in this rank's buffer.
        self.remaining = sum(map(len, self._chunks))
        if carries and config.locals > 1:
            # Each chunk of the own lane also has to be handed on to the other ranks of the host: until then the buffer
            # is still read, so it must not count as done.
            self.remaining += len(self._chunks[config.local])

    def chunks(self, lane: int, server: int | None) -> tuple[Chunk, ...]:
        """Return a lane's chunks, or those chunks of the own lane that `server` sums."""
        return self._chunks[lane] if server is None else self._of_server.get(server, ())

    def view(self, chunk: Chunk) -> memoryview:
        """Return the chunk's bytes in the buffer."""
        size = self.submission.element.size
        return self._bytes[chunk.offset * size : (chunk.offset + chunk.count) * size]

    def values(self, chunk: Chunk) -> Array:
        """Return the chunk's elements as a numpy array; writing to the array writes to the buffer."""
        return values(self.view(chunk), self.submission.element)

    def host_sum(self, chunk: Chunk) -> tuple[Array, Element]:
        """Return the chunk's place for the sum over this host's ranks, and its type: in the buffer, or next to it."""
        if self._wide is None:
            return self.values(chunk), self.submission.element
        start = chunk.offset - self._wide_offset
        return self._wide[start : start + chunk.count], Element.FLOAT32

    def header(self, chunk: Chunk, length: int) -> Header:
        """Return the header of the message that pushes the chunk with `length` bytes."""
        submission = self.submission
        return Header(
            Kind.PUSH,
            submission.element,
            submission.wire,
            length,
            self.sequence,
            chunk.offset,
            chunk.count,
            divisor=submission.divisor,
        )


def values(data: memoryview, element: Element) -> Array:
    """Return bytes as a numpy array of that element type, without a copy."""
    return np.frombuffer(data, element.stored)


class Cursor:
    """A cursor over all buffers' chunks, in order: those of one lane, or those of the own lane that one server sums."""

    def __init__(self, buffers: Buffers, lane: int, server: int | None = None) -> None:
        self._buffers, self._lane, self._server = buffers, lane, server
        self._sequence = self._index = 0

    def peek(self) -> tuple[Buffer, Chunk] | None:
        """Return the next chunk with its buffer, or None if it has not been submitted yet."""
        while self._sequence < self._buffers.submitted:
            # A buffer that is no longer pending is done, so this cursor has passed all chunks in it that it visits.
            buffer = self._buffers.pending.get(self._sequence)
            chunks = buffer.chunks(self._lane, self._server) if buffer else ()
            if buffer and self._index < len(chunks):
                return buffer, chunks[self._index]
            self._sequence, self._index = self._sequence + 1, 0
        return None

    def advance(self) -> None:
        """Step behind the chunk that `peek` returns."""
        self._index += 1


class Buffers:
    """The buffers in flight, by number.

    The I/O thread changes them. `is_done` may be called from any thread: it reads one integer and one set.
    """

    def __init__(self) -> None:
        self.pending: dict[int, Buffer] = {}
        self.submitted = 0
        # Buffers are done nearly in order: all numbers below `done_below`, and those in `_done`, which stays small.
        self._done: set[int] = set()
        self.done_below = 0

    def add(self, submission: Submission, config: CoreConfig) -> Buffer:
        """Number a buffer and return its state."""
        buffer = Buffer(self.submitted, submission, config)
        self.pending[buffer.sequence] = buffer
        self.submitted += 1
        return buffer

    def finish(self, sequence: int) -> None:
        """Record that the buffer's sum is in place."""
        # Also drops the view of the user's memory.
        self.pending.pop(sequence, None)
        self._done.add(sequence)
        while self.done_below in self._done:
            self._done.remove(self.done_below)
            self.done_below += 1

    def is_done(self, sequence: int) -> bool:
        """Return True if the buffer's sum is in place."""
        return sequence < self.done_below or sequence in self._done
