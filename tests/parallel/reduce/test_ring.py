"""Where chunks lie, and who is sent to first."""

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
    there: list[tuple[int, int]] = []
    for size in sizes:
        while not taken.is_free(freed, size):
            start, old = there.pop(0)
            # Whoever gives a chunk back walks along by the same sizes, and comes by the same places.
            assert freed.next(old) == start
        start = taken.next(size)
        assert start + size <= limit.ring
        assert all(start + size <= other or other + old <= start for other, old in there)
        assert walker.next(size) == start
        there.append((start, size))
        assert len(there) <= under_way


def test_hosts_begin_with_different_ones() -> None:
    links = [LinkSpec(number, Role.HELPER, number, f"helper {number}") for number in range(3)]
    assert [[link.index for link in rotated(links, start)] for start in range(4)] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [0, 1, 2],
    ]
    assert rotated([], 5) == ()
