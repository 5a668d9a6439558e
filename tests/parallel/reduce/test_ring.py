"""The positions of chunks in a ring, and the order of links."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from herringbone_parallel.reduce.cores import ring
from herringbone_parallel.reduce.cores.base import Limit, LinkSpec, Role, rotated
from herringbone_parallel.reduce.cores.ring import RingCursor


def test_the_usages() -> None:
    assert doctest.testmod(ring) == (0, 2)


@given(
    sizes=st.lists(st.integers(1, 256), max_size=40),
    under_way=st.integers(1, 8),
)
def test_no_chunk_lies_on_one_that_is_under_way(sizes: list[int], under_way: int) -> None:
    limit = Limit(ring=1024, chunks=under_way)
    taken, freed, walker = RingCursor(limit), RingCursor(limit), RingCursor(limit)
    chunks: list[tuple[int, int]] = []
    for size in sizes:
        while not taken.is_free(freed, size):
            start, old = chunks.pop(0)
            # Every cursor advances by the same sizes, so it computes the same positions.
            assert freed.next(old) == start
        start = taken.next(size)
        assert start + size <= limit.ring
        assert all(start + size <= other or other + old <= start for other, old in chunks)
        assert walker.next(size) == start
        chunks.append((start, size))
        assert len(chunks) <= under_way


def test_hosts_start_with_different_servers() -> None:
    links = [LinkSpec(number, Role.HELPER, number, f"helper {number}") for number in range(3)]
    assert [[link.index for link in rotated(links, start)] for start in range(4)] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [0, 1, 2],
    ]
    assert rotated([], 5) == ()
