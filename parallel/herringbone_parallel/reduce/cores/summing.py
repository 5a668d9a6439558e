"""The receiving side of a server: a slot for each member's chunk, until all members' chunks have arrived."""

from __future__ import annotations

import time
from collections.abc import Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import Limit
from herringbone_parallel.reduce.cores.messages import Header
from herringbone_parallel.reduce.cores.ring import RingCursor


class Slots:
    """The chunks that the members of a sum have contributed, at most `limit` of each member.

    `memories[m]` is the ring that holds member m's chunks, or None for this process itself, whose chunks are read from
    its buffer. A member reuses a chunk's place only after it has received that chunk's sum. By then this process has
    passed the place, so memory is bounded whatever the size of the buffers.
    """

    def __init__(self, memories: Sequence[memoryview | None], labels: Sequence[str], limit: Limit) -> None:
        self._memories, self._labels, self._limit = memories, labels, limit
        # Chunk n of every member uses entry n modulo `limit.chunks`.
        self._headers: list[list[Header | None]] = [[None] * len(memories) for _ in range(limit.chunks)]
        # This process itself is not counted: the flow checks that its own part is ready.
        self._others = sum(memory is not None for memory in memories)
        self._arrived_counts = [0] * limit.chunks
        self._waiting_since: float | None = None
        # One cursor for the sums, and one for each member's arrivals: members run ahead of the sums independently.
        self.summed = RingCursor(limit)
        self._arrived = [RingCursor(limit) for _ in memories]

    def slot(self, member: int, size: int) -> memoryview:
        """Return the memory for a member's next chunk. Raises `ParallelError` if the member exceeds its window."""
        arrived = self._arrived[member]
        if not arrived.is_free(self.summed, size):
            raise ParallelError(f"{self._labels[member]} pushed more than its window of {self._limit.ring} bytes")
        return self.at(member, arrived.peek(size), size)

    def at(self, member: int, start: int, size: int) -> memoryview:
        """Return a part of a member's ring."""
        memory = self._memories[member]
        assert memory is not None
        return memory[start : start + size]

    def arrive(self, member: int, size: int, header: Header) -> None:
        """Record that a member's next chunk has arrived. Raises `ParallelError` if the member exceeds its window."""
        # Chunks in shared memory arrive without a call of `slot`, so the window is checked here, too.
        self.slot(member, size)
        number = self._arrived[member].number % self._limit.chunks
        self._arrived[member].next(size)
        self._headers[number][member] = header
        self._arrived_counts[number] += 1

    def complete(self) -> bool:
        """Return True if all other members have contributed the next chunk."""
        return self._arrived_counts[self._number] == self._others

    @property
    def _number(self) -> int:
        return self.summed.number % self._limit.chunks

    def check(self, own: Header | None) -> Header:
        """Return the next chunk's header. Raises `ParallelError` if members contributed different chunks."""
        headers = [own if header is None else header for header in self._headers[self._number]]
        first = headers[0]
        assert first is not None
        for member, header in enumerate(headers):
            assert header is not None
            # Summing different chunks would silently add unrelated elements.
            if not header.same_chunk(first):
                raise ParallelError(
                    f"ranks do not sum the same buffers: {self._labels[0]} gave {first.describe()}, "
                    f"{self._labels[member]} gave {header.describe()}. All ranks submit the same buffers in the same "
                    "order: compare their models, and what they skip"
                )
        return first

    def advance(self, size: int) -> int:
        """Step behind the next chunk, which is about to be summed; return its start in each member's ring."""
        # The entry is free for the chunk that comes `limit.chunks` later.
        self._headers[self._number] = [None] * len(self._memories)
        self._arrived_counts[self._number] = 0
        self._waiting_since = None
        return self.summed.next(size)

    def missing(self, own: bool, late: float) -> str | None:
        """Return the members that keep the others waiting for more than `late` seconds, or None.

        `own` is True if this process has contributed its part of the next chunk.
        """
        headers = self._headers[self._number]
        absent = [
            label
            for label, header, memory in zip(self._labels, headers, self._memories, strict=True)
            if header is None and not (memory is None and own)
        ]
        # If nobody has contributed, nobody waits: the script computes.
        if not absent or len(absent) == len(headers):
            self._waiting_since = None
            return None
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        return ", ".join(absent) if now - self._waiting_since > late else None
