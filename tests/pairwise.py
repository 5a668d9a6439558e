"""Pairwise covers: few rows of a table of parameters, in which any two values of two axes meet in some row.

`scripts/nightly` sets TEST_EVERY_COMBINATION=1, and then the rows are all combinations.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import combinations, product
from typing import Any


def pairwise(*axes: Collection[Any]) -> list[tuple[Any, ...]]:
    """Return rows with a value of each axis, for `pytest.mark.parametrize`. The same axes have the same rows.

    >>> pairwise("ab", (1, 2), (True, False))
    [('a', 1, True), ('a', 2, False), ('b', 1, False), ('b', 2, True)]
    """
    if os.environ.get("TEST_EVERY_COMBINATION"):
        return list(product(*axes))
    values = [(axis, value) for axis, members in enumerate(axes) for value in range(len(members))]
    missing = {pair: None for pair in combinations(values, 2) if pair[0][0] != pair[1][0]}
    rows = []
    while missing:
        # A row begins with a pair that no row has yet, and takes on each other axis the value that meets most of those.
        row = dict(next(iter(missing)))
        for axis, members in enumerate(axes):
            if axis not in row:
                candidates = [{**row, axis: value} for value in range(len(members))]
                row = max(candidates, key=lambda candidate: len(missing.keys() & _pairs(candidate)))
        for pair in _pairs(row):
            missing.pop(pair, None)
        rows.append(tuple(list(members)[row[axis]] for axis, members in enumerate(axes)))
    return rows


def _pairs(row: dict[int, int]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(sorted(row.items()), 2))
