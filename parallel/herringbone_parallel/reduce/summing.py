"""The part of a server: a slot for each member's chunk, and the sum once all have come, in the order of the members."""

from __future__ import annotations

import time
from collections.abc import Sequence

from herringbone_parallel.reduce.wire import Header
from herringbone_spec.errors import ParallelError


class Slots:
    """What the members of a sum have given: `window` chunks of each at most.

    A member pushes chunk i + window only when it has the sum of chunk i, so that its slot is free again by then, and
    memory is bounded whatever the size of the buffers. `memories[m]` is the memory of member m's slots, None for the
    member that this process is: its chunk is read from its buffer.
    """

    def __init__(self, memories: Sequence[memoryview | None], labels: Sequence[str], window: int) -> None:
        self._memories, self._labels, self._window = memories, labels, window
        self._size = [len(memory) // window if memory is not None else 0 for memory in memories]
        self._headers: list[list[Header | None]] = [[None] * len(memories) for _ in range(window)]
        self._others = sum(memory is not None for memory in memories)
        self._came = [0] * window
        self._waiting_since: float | None = None
        self.summed = 0

    def slot(self, member: int, number: int) -> memoryview:
        """Return the slot of a member's chunk of that number. Raises `ParallelError` for one that is not due."""
        if number - self.summed >= self._window:
            raise ParallelError(f"{self._labels[member]} pushed more than its window of {self._window} chunks")
        return self.at(member, number)

    def at(self, member: int, number: int) -> memoryview:
        """Return a slot, also one whose chunk is summed already."""
        memory = self._memories[member]
        assert memory is not None
        start = number % self._window * self._size[member]
        return memory[start : start + self._size[member]]

    def arrive(self, member: int, number: int, header: Header) -> None:
        self._headers[number % self._window][member] = header
        self._came[number % self._window] += 1

    def complete(self) -> bool:
        """Whether all other members have given the next chunk."""
        return self._came[self.summed % self._window] == self._others

    def check(self, own: Header | None) -> Header:
        """Return the next chunk's header. Raises `ParallelError` where members are not at the same chunk."""
        headers = [own if header is None else header for header in self._headers[self.summed % self._window]]
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

    def advance(self) -> None:
        """The next chunk is summed: its slots are free."""
        self._headers[self.summed % self._window] = [None] * len(self._memories)
        self._came[self.summed % self._window] = 0
        self._waiting_since = None
        self.summed += 1

    def missing(self, own: bool, late: float) -> str | None:
        """Return who keeps the others waiting for longer than `late` seconds; `own`: this process does not."""
        headers = self._headers[self.summed % self._window]
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
