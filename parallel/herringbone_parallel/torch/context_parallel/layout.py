"""The rows of a sequence that each rank of a context group holds. Pure: no framework, no I/O.

A sequence is cut into two parts per rank, and a rank holds one from the front and one from the back:

    2 ranks, 8 positions    | 0 1 | 2 3 | 4 5 | 6 7 |
    rank                       0     1     1     0

Under a causal mask a row attends to the rows before it only, so parts at the end cost more than parts at the start.
With such pairs every rank has the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from herringbone_contract.errors import ParallelError


class Part(NamedTuple):
    """Positions `start` to `stop` of the sequence, without `stop`."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """A sequence of `length` positions over `ranks` ranks.

    >>> Layout(8, 2).parts(1)
    (Part(start=2, stop=4), Part(start=4, stop=6))
    >>> Layout(7, 2).rows(0)
    [0, 1, 6]

    Lengths that the ranks do not divide are served: ranks then hold up to two positions more than others.
    """

    length: int
    ranks: int

    def parts(self, rank: int) -> tuple[Part, Part]:
        """Return the two parts of a rank, in the order of the sequence."""
        last = 2 * self.ranks - 1
        return self._part(rank), self._part(last - rank)

    def rows(self, rank: int) -> list[int]:
        """Return the positions of a rank, in order."""
        return [row for part in self.parts(rank) for row in range(*part)]

    def rows_held(self, rank: int) -> int:
        """Return the number of positions of a rank."""
        return sum(part.length for part in self.parts(rank))

    @cached_property
    def largest(self) -> int:
        """The number of positions of the rank with the most."""
        return max(self.rows_held(rank) for rank in range(self.ranks))

    def order(self) -> list[int]:
        """Return, for each position, its index in the ranks' rows when each rank's are filled up to `largest`."""
        places = [0] * self.length
        for rank in range(self.ranks):
            for index, row in enumerate(self.rows(rank)):
                places[row] = rank * self.largest + index
        return places

    def _part(self, index: int) -> Part:
        smaller, longer = divmod(self.length, 2 * self.ranks)
        start = index * smaller + min(index, longer)
        return Part(start, start + smaller + (index < longer))


def of_sequence(length: int, ranks: int) -> Layout:
    """Return the layout of a sequence. Raises `ParallelError` when it is too short to be shared.

    A model takes an input of one position for a step of generation, so each rank needs two.
    """
    if length < 2 * ranks:
        raise ParallelError(
            f"a sequence of {length} positions is too short for {ranks} ranks, each of which needs two or more: use"
            f" longer sequences, or set context_parallel_degree to {max(length // 2, 1)} or less"
        )
    return Layout(length, ranks)


def check_apart(sequence: Layout, memory: Layout) -> None:
    """Refuse two sequences of different lengths of which some rank would hold equally many rows.

    A rank knows a tensor's sequence by its number of rows. Lengths that 2 x ranks divides are never confused.
    """
    if sequence.length == memory.length:
        return
    if any(sequence.rows_held(rank) == memory.rows_held(rank) for rank in range(sequence.ranks)):
        multiple = 2 * sequence.ranks
        raise ParallelError(
            f"sequences of {sequence.length} and {memory.length} positions cannot be told apart on"
            f" {sequence.ranks} ranks that share them: pad one to a multiple of {multiple} positions"
        )
