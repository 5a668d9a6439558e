from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.context_parallel.layout import Layout, Part, check_apart, of_sequence


@given(st.integers(1, 6), st.integers(0, 40))
def test_ranks_hold_each_position_once_and_equally_many(ranks: int, more: int) -> None:
    layout = of_sequence(2 * ranks + more, ranks)
    rows = [layout.rows(rank) for rank in range(ranks)]
    assert sorted(row for of_rank in rows for row in of_rank) == list(range(layout.length))
    assert all(of_rank == sorted(of_rank) for of_rank in rows)
    held = [layout.rows_held(rank) for rank in range(ranks)]
    assert held == [len(of_rank) for of_rank in rows]
    assert max(held) - min(held) <= 2
    filled = [row for of_rank in rows for row in (*of_rank, *[None] * (layout.largest - len(of_rank)))]
    assert [filled[place] for place in layout.order()] == list(range(layout.length))


def test_a_rank_has_a_part_from_the_front_and_one_from_the_back() -> None:
    assert [Layout(8, 2).parts(rank) for rank in range(2)] == [(Part(0, 2), Part(6, 8)), (Part(2, 4), Part(4, 6))]


def test_ranks_have_the_same_causal_work() -> None:
    layout = Layout(64, 4)
    work = {sum(row + 1 for row in layout.rows(rank)) for rank in range(4)}
    assert work == {sum(range(65)) // 4}


def test_a_sequence_that_leaves_a_rank_one_position_is_refused() -> None:
    with pytest.raises(ParallelError, match=r"7 positions is too short for 4 ranks.*context_parallel_degree to 3"):
        of_sequence(7, 4)


def test_two_sequences_are_told_apart_by_the_rows_of_every_rank() -> None:
    check_apart(Layout(8, 2), Layout(12, 2))
    check_apart(Layout(7, 2), Layout(7, 2))
    with pytest.raises(ParallelError, match="pad one to a multiple of 4 positions"):
        check_apart(Layout(8, 2), Layout(9, 2))
