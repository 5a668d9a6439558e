"""Equality: 8 models have one process's losses and weights after 5 steps under layouts of ranks, or are refused.

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


def train_in_a_pipeline(name: str) -> cells.Trained:
    return cells.train_pipeline(MODELS[name], torch.float64)


@pytest.fixture(scope="module")
def trained(ranks: Ranks) -> Callable[[str], list[Results]]:
    """Return what the ranks of a layout have trained."""

    @cache
    def train(layout: str) -> list[Results]:
        count, parameters = LAYOUTS[layout].ranks, LAYOUTS[layout].parameters
        dtypes = sorted({dtype for of_layout, _, dtype in CELLS if of_layout == layout}, key=str)
        return ranks.shard(train_plain_models, count, dict(parameters), dtypes)

    return train


def check(by_rank: list[cells.Trained], name: str, dtype: torch.dtype, batches: int) -> None:
    difference = cells.compare(by_rank, cells.train_alone(MODELS[name], dtype, batches))
    assert difference.losses <= TOLERANCE[dtype]
    assert difference.weights <= TOLERANCE[dtype], difference.weight


@pytest.mark.parametrize(("layout", "name", "dtype"), CELLS, ids=[f"{a}-{b}-{c}" for a, b, c in CELLS])
def test_ranks_train_as_one_process(
    trained: Callable[[str], list[Results]], layout: str, name: str, dtype: torch.dtype
) -> None:
    by_rank = [results[name, dtype] for results in trained(layout)]
    reasons = [MODELS[name].refused[axis] for axis in LAYOUTS[layout].axes if axis in MODELS[name].refused]
    if reasons:
        assert all(reasons[0] in refusal for refusal in by_rank)
        return
    check(by_rank, name, dtype, LAYOUTS[layout].batches)


def train_translation() -> cells.Trained:
    return cells.train_sharded(MODELS["encoder-decoder"], torch.float64)


@pytest.mark.parametrize("layout", cells.COMBINED)
def test_context_parallelism_combines_with_the_other_axes(ranks: Ranks, layout: str) -> None:
    count, parameters, batches, _ = cells.COMBINED[layout]
    by_rank = ranks.shard(train_translation, count, dict(parameters))
    check(by_rank, "encoder-decoder", torch.float64, batches)


@pytest.mark.parametrize("name", MODELS)
def test_a_pipeline_with_shards_trains_as_one_process(ranks: Ranks, name: str) -> None:
    by_rank = ranks.run(train_in_a_pipeline, {**cells.PIPELINE.parameters, "replicas": 2}, name)
    check(by_rank, name, torch.float64, cells.PIPELINE.batches)
