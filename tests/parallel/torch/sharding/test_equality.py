"""Equality: 8 models under layouts of ranks have one process's losses and weights after 5 steps, or are refused by name.

The ranks of a layout train all models in one run, because meshes and process groups take longer than the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from tests.parallel.torch.ranks import Ranks
from tests.parallel.torch.sharding import cells
from tests.parallel.torch.sharding.cells import LAYOUTS, TOLERANCE
from tests.parallel.torch.sharding.models import MODELS

Results = dict[tuple[str, torch.dtype], Any]


# fp64 proves the mathematics, so fp32 needs two ranks only; the campaign has all cells in both.
CELLS = [
    (layout, name, dtype)
    for layout in LAYOUTS
    for name in MODELS
    for dtype in TOLERANCE
    if dtype == torch.float64 or LAYOUTS[layout].ranks == 2
]


def train_plain_models(dtypes: list[torch.dtype]) -> Results:
    return cells.train_all(MODELS, dtypes)


@pytest.fixture(scope="module")
def trained(ranks: Ranks) -> Callable[[str], list[Results]]:
    """Return what the ranks of a layout have trained."""

    @cache
    def train(layout: str) -> list[Results]:
        count, parameters = LAYOUTS[layout].ranks, LAYOUTS[layout].parameters
        dtypes = sorted({dtype for of_layout, _, dtype in CELLS if of_layout == layout}, key=str)
        return ranks.shard(train_plain_models, count, dict(parameters), dtypes)

    return train


@pytest.mark.parametrize(("layout", "name", "dtype"), CELLS)
def test_ranks_train_as_one_process(
    trained: Callable[[str], list[Results]], layout: str, name: str, dtype: torch.dtype
) -> None:
    by_rank = [results[name, dtype] for results in trained(layout)]
    reasons = [MODELS[name].refused[axis] for axis in LAYOUTS[layout].axes if axis in MODELS[name].refused]
    if reasons:
        assert all(reasons[0] in refusal for refusal in by_rank)
        return
    difference = cells.compare(by_rank, cells.train_alone(MODELS[name], dtype, LAYOUTS[layout].batches))
    assert difference.losses <= TOLERANCE[dtype]
    assert difference.weights <= TOLERANCE[dtype], difference.weight
