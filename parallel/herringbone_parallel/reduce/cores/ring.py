"""Positions of chunks in a ring of memory that is reused: one chunk behind the other, none across the end.

All users of a ring (the writer of chunks, their summing server, the receiver that frees them) advance cursors of their
own by the same sizes, so all of them compute the same positions and no position needs to travel.
"""

from __future__ import annotations

from herringbone_parallel.reduce.cores.base import Limit

# Chunks start at multiples of a cache line, so that two processes never write to the same line.
_LINE = 64


class RingCursor:
    """A cursor in a ring. `number` counts the chunks that it has passed.

    >>> cursor = RingCursor(Limit(ring=256, chunks=8))
    >>> cursor.next(100), cursor.next(100), cursor.next(100), cursor.number
    (0, 128, 0, 3)

    `end` is the end of the last chunk, as a number that never wraps: the difference of two cursors is the number of
    bytes between them.
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.number = self.end = 0

    def next(self, size: int) -> int:
        """Return the start of the next chunk, of `size` bytes, and step behind it."""
        start, self.end = self._following(size)
        self.number += 1
        return start

    def peek(self, size: int) -> int:
        """Return the start of the next chunk without stepping."""
        return self._following(size)[0]

    def is_free(self, freed: RingCursor, size: int) -> bool:
        """Return True if the next chunk overwrites none that `freed` has not passed."""
        # An empty ring takes any chunk, also when padding before the ring's end would exceed its size.
        if self.number == freed.number:
            return True
        end = self._following(size)[1]
        return end - freed.end <= self._limit.ring and self.number - freed.number < self._limit.chunks

    def _following(self, size: int) -> tuple[int, int]:
        start = self.end % self._limit.ring
        end = self.end
        if start + size > self._limit.ring:
            # A chunk must be contiguous: skip the rest of the ring, and count the skipped bytes as used.
            start, end = 0, end + self._limit.ring - start
        return start, end + -(-size // _LINE) * _LINE
