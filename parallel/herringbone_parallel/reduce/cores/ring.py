"""Where chunks lie in memory that is used again and again: one behind the other, none across the end.

Whoever writes chunks, sums them or gives them back walks along by the same sizes, and so finds the same places.
"""

from __future__ import annotations

from herringbone_parallel.reduce.cores.base import Limit

# Chunks start at multiples of this.
_LINE = 64


class Place:
    """A walk along a ring: how many chunks it has passed, and where the last one ends, counted without a turn.

    >>> place = Place(Limit(ring=256, chunks=8))
    >>> place.next(100), place.next(100), place.next(100), place.number
    (0, 128, 0, 3)
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self.number = self.end = 0

    def next(self, size: int) -> int:
        """Return where the next chunk, of `size` bytes, begins, and step behind it."""
        at, self.end = self._following(size)
        self.number += 1
        return at

    def peek(self, size: int) -> int:
        """Return where the next chunk would begin."""
        return self._following(size)[0]

    def is_free(self, freed: Place, size: int) -> bool:
        """Whether the next chunk's place is free, where all that `freed` has passed are."""
        if self.number == freed.number:
            return True
        end = self._following(size)[1]
        return end - freed.end <= self._limit.ring and self.number - freed.number < self._limit.chunks

    def _following(self, size: int) -> tuple[int, int]:
        at = self.end % self._limit.ring
        end = self.end
        if at + size > self._limit.ring:
            at, end = 0, end + self._limit.ring - at
        return at, end + -(-size // _LINE) * _LINE
