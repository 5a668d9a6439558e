"""A cover of pairs leaves no pair of values out."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from tests.pairwise import pairwise


@pytest.mark.parametrize(
    ("sizes", "most"), [((2, 2), 4), ((2, 3, 5, 2), 16), ((41, 3, 4, 3, 3, 2), 170), ((3,) * 13, 30)]
)
def test_any_two_values_meet_in_few_rows(sizes: tuple[int, ...], most: int) -> None:
    axes = [[f"{axis}-{value}" for value in range(size)] for axis, size in enumerate(sizes)]
    rows = pairwise(*axes)
    for one, other in combinations(range(len(axes)), 2):
        assert {(row[one], row[other]) for row in rows} == set(product(axes[one], axes[other]))
    assert {value for row in rows for value in row} == set().union(*axes)
    assert len(rows) <= most
    assert rows == pairwise(*axes)
