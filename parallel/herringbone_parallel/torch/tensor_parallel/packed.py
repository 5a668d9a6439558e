"""The arithmetic of packed parameters: several blocks, such as query, key and value, in one parameter."""

from __future__ import annotations


def rows_for(rank: int, rows: int, blocks: int, degree: int) -> list[list[int]]:
    """Return, by receiving rank, the local rows of `rank` that belong to the receiver's part of a block.

    Each of the `degree` ranks stores `rows` consecutive rows of the parameter. A block of them belongs to the ranks in
    `degree` consecutive parts. Three blocks of four rows, stored by two ranks:

        stored by     rank 0: q0 q1 q2 q3 k0 k1    rank 1: k2 k3 v0 v1 v2 v3
        belongs to    rank 0: q0 q1 k0 k1 v0 v1    rank 1: q2 q3 k2 k3 v2 v3

    >>> rows_for(0, 6, blocks=3, degree=2), rows_for(1, 6, blocks=3, degree=2)
    ([[0, 1, 4, 5], [2, 3]], [[2, 3], [0, 1, 4, 5]])
    """
    block = rows * degree // blocks
    receivers: list[list[int]] = [[] for _ in range(degree)]
    for row in range(rows):
        in_block = (rank * rows + row) % block
        receivers[in_block * degree // block].append(row)
    return receivers
