"""Recipes over ranks: equal running statistics before an evaluation, and equal initial weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.recipes.api import average_batch_norm, require_equal, seeded, tune_batch_norm
from tests.parallel.torch.ranks import Ranks

TWO = {"partitions": 1, "replicas": 2, "ddp": True}


def averaged() -> list[list[float]]:
    """Average statistics of ranks that each see half of the examples; with momentum 1 only that forward counts."""
    layers = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.BatchNorm1d(3, momentum=1.0, affine=False))
    torch.manual_seed(0)
    examples = torch.randn(40, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 100.0, -3.0])
    examples[20:] += 2
    layers[0](examples[dist.get_rank() :: 2])
    average_batch_norm(layers)
    return [layers[0].running_mean.tolist(), layers[0].running_var.tolist(), layers[1].running_var.tolist()]


def test_statistics_are_those_of_all_ranks_together(ranks: Ranks) -> None:
    first, second = ranks.run(averaged, dict(TWO))
    assert first == second
    torch.manual_seed(0)
    examples = torch.randn(40, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 100.0, -3.0])
    examples[20:] += 2
    assert first[0] == pytest.approx(examples.mean(dim=0).tolist(), rel=1e-5)
    within = torch.stack([examples[start::2].var(dim=0) for start in (0, 1)]).mean(dim=0)
    between = torch.stack([examples[start::2].mean(dim=0) for start in (0, 1)]).var(dim=0, unbiased=False)
    assert first[1] == pytest.approx((within + between).tolist(), rel=1e-4)
    assert first[2] == [1.0, 1.0, 1.0]


def different_sizes() -> str:
    with pytest.raises(ParallelError, match="the ranks' models differ: 6 to 10 running statistics") as caught:
        average_batch_norm(nn.BatchNorm1d(3 + 2 * dist.get_rank()))
    return str(caught.value)


def test_models_that_differ_are_named(ranks: Ranks) -> None:
    assert all("build the same model" in text for text in ranks.run(different_sizes, dict(TWO)))


def create_model(seed_apart: bool) -> str:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    with seeded(7 + (rank if seed_apart else 0)):
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    number = torch.randn(1).item()
    torch.manual_seed(rank)
    assert number == torch.randn(1).item()
    try:
        require_equal(model)
    except ParallelError as error:
        return str(error)
    return "equal"


def test_a_seed_gives_all_ranks_the_same_weights_and_leaves_them_their_own_numbers(ranks: Ranks) -> None:
    assert ranks.run(create_model, dict(TWO), False) == ["equal", "equal"]


def test_weights_that_differ_are_named_on_all_ranks(ranks: Ranks) -> None:
    answers = ranks.run(create_model, dict(TWO), True)
    assert answers[0] == answers[1]
    assert "1.weight on rank 1 is not rank 0's" in answers[0]


def test_a_lone_process_checks_nothing() -> None:
    layer = nn.BatchNorm1d(3)
    average_batch_norm(layer)
    require_equal(layer)
    assert layer.running_var.tolist() == [1.0, 1.0, 1.0]


def test_momentum_follows_the_batch() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm1d(3, momentum=None)))
    tune_batch_norm(model, batch=64, base_batch=32)
    assert model[0].momentum == pytest.approx(0.19)
    assert model[1][0].momentum is None
