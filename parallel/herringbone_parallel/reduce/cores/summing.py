"""The part of a server: a slot for each member's chunk, and the sum once all have come, in the order of the members."""

from __future__ import annotations

import time
from collections.abc import Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import Limit
from herringbone_parallel.reduce.cores.messages import Header
from herringbone_parallel.reduce.cores.ring import Place


class Slots:
    """What the members of a sum have given: `limit` of each at most.

    A member pushes what takes a chunk's place only when it has that chunk's sum, so that the place is free again by
    then, and memory is bounded whatever the size of the buffers. `memories[m]` is the ring of member m's chunks, None
    for the member that this process is: its chunk is read from its buffer.
    """

    def __init__(self, memories: Sequence[memoryview | None], labels: Sequence[str], limit: Limit) -> None:
        self._memories, self._labels, self._limit = memories, labels, limit
        self._headers: list[list[Header | None]] = [[None] * len(memories) for _ in range(limit.chunks)]
        self._others = sum(memory is not None for memory in memories)
        self._came = [0] * limit.chunks
        self._waiting_since: float | None = None
        self.summed = Place(limit)
        self._arrived = [Place(limit) for _ in memories]

    def slot(self, member: int, size: int) -> memoryview:
        """Return where a member's next chunk goes. Raises `ParallelError` for one that is not due."""
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
        """A member's next chunk is there. Raises `ParallelError` for one that is not due."""
        self.slot(member, size)
        number = self._arrived[member].number % self._limit.chunks
        self._arrived[member].next(size)
        self._headers[number][member] = header
        self._came[number] += 1

    def complete(self) -> bool:
        """Whether all other members have given the next chunk."""
        return self._came[self._number] == self._others

    @property
    def _number(self) -> int:
        return self.summed.number % self._limit.chunks

    def check(self, own: Header | None) -> Header:
        """Return the next chunk's header. Raises `ParallelError` where members are not at the same chunk."""
        headers = [own if header is None else header for header in self._headers[self._number]]
        first = headers[0]
        assert first is not None
        for member, header in enumerate(headers):
            assert header is not None
            if not header.same_chunk(first):
                raise ParallelError(
                    f"ranks do not sum the same buffers: {self._labels[0]} gave {first.describe()}, "
                    f"{self._labels[member]} gave {header.describe()}. All ranks submit the same buffers in the same "
                    "order: compare their models, and what they skip"
                )
        return first

    def advance(self, size: int) -> int:
        """The next chunk is about to be summed; return where it lies in each member's ring."""
        self._headers[self._number] = [None] * len(self._memories)
        self._came[self._number] = 0
        self._waiting_since = None
        return self.summed.next(size)

    def missing(self, own: bool, late: float) -> str | None:
        """Return who keeps the others waiting for longer than `late` seconds; `own`: this process does not."""
        headers = self._headers[self._number]
        absent = [
            label
            for label, header, memory in zip(self._labels, headers, self._memories, strict=True)
            if header is None and not (memory is None and own)
        ]
        if not absent or len(absent) == len(headers):
            self._waiting_since = None
            return None
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        return ", ".join(absent) if now - self._waiting_since > late else None
