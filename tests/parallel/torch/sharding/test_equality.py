"""Equality: 8 models have one process's losses and weights after 5 steps under layouts of ranks, or are refused.

The ranks of a layout train all models in one run, because meshes and process groups take longer than the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist

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


def numbers_of_parameters(split: Callable[[torch.nn.Module], torch.nn.Module]) -> list[Any]:
    """Return numbers that scripts read, and weights after steps of an optimizer that reads some."""
    torch.manual_seed(3)
    model = split(torch.nn.Linear(3, 5, dtype=torch.float64))
    model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
    weight = model.weight
    reads = [weight.norm(), weight.norm(torch.inf), weight.norm(3), weight.sum(), weight.mean(), weight.std()]
    reads += [weight.abs().max(), weight.min(), torch.linalg.matrix_norm(weight), torch._foreach_norm([weight])[0]]
    numbers: list[Any] = [read.item() for read in reads]
    numbers += [
        (weight > weight.max() - 1e-9).any().item(),
        int(torch.count_nonzero(weight)),
        float(weight.grad.norm()),
    ]
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if not dist.is_initialized() or dist.get_rank() == 0:
        # The first rank alone writes the log.
        numbers.append(total.item())
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.step()
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return [numbers, whole.detach().tolist()]


def sharded_numbers() -> list[Any]:
    from herringbone_parallel.torch.sharding.api import shard

    return numbers_of_parameters(shard)


def test_numbers_of_sharded_parameters_are_those_of_the_whole(ranks: Ranks) -> None:
    """`parameter.norm().item()` had been the norm of the rank's elements, and Adafactor had failed in torch."""
    numbers, weights = numbers_of_parameters(lambda model: model)
    for rank, found in enumerate(ranks.shard(sharded_numbers, 2, {"hybrid_shard_degree": 2})):
        assert found[0] == pytest.approx(numbers[: len(found[0])], rel=1e-12), rank
        torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(weights), atol=1e-12, rtol=0)
