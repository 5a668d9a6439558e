"""Training over ranks gives what training in one process gives: same losses, same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch import models
from tests.parallel.torch.ranks import Ranks

STEPS = 4


def train(name: str) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """What a user's script does, as one rank."""
    import herringbone_parallel.torch as smp

    module, inputs, target = models.build(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss)
        return loss

    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(train_step(inputs, target).reduce_mean().item())
        optimizer.step()
    held = sum(parameter.numel() for parameter in model.local_parameters())
    return losses, model.state_dict(), held


def train_alone(name: str, microbatches: int) -> tuple[list[float], dict[str, torch.Tensor], int]:
    module, inputs, target = models.build(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for part, wanted in zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True):
            share = nn.functional.cross_entropy(module(part), wanted) / microbatches
            share.backward()
            loss += share.item()
        optimizer.step()
        losses.append(loss)
    return losses, module.state_dict(), sum(parameter.numel() for parameter in module.parameters())


def assert_equal(found: list[Any], name: str, microbatches: int) -> None:
    losses, weights, total = train_alone(name, microbatches)
    for rank_losses, rank_weights, _ in found:
        assert rank_losses == pytest.approx(losses, abs=1e-6)
        assert rank_weights.keys() == weights.keys()
        for key in weights:
            torch.testing.assert_close(rank_weights[key], weights[key], atol=1e-6, rtol=0, msg=key)
    assert sum(held for *_, held in found) == total, "each parameter lives on exactly one rank"


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("name", models.ALL)
def test_two_partitions_train_as_one_process_does(ranks: Ranks, name: str, microbatches: int, pipeline: str) -> None:
    found = ranks.run(train, {"partitions": 2, "microbatches": microbatches, "pipeline": pipeline}, name)
    assert_equal(found, name, microbatches)


@pytest.mark.parametrize("name", ["Chain", "Residual", "Revisited", "Tied"])
def test_three_partitions_train_as_one_process_does(ranks: Ranks, name: str) -> None:
    found = ranks.run(train, {"partitions": 3, "microbatches": 4}, name)
    assert_equal(found, name, 4)


def test_one_partition_is_plain_training_with_microbatches(ranks: Ranks) -> None:
    found = ranks.run(train, {"partitions": 1, "microbatches": 4}, "Chain")
    assert_equal(found, "Chain", 4)


def test_batchnorm_statistics_live_with_their_layer(ranks: Ranks) -> None:
    found = ranks.run(train, {"partitions": 2, "microbatches": 1}, "Normed")
    assert_equal(found, "Normed", 1)


def test_same_seed_same_loss_to_the_last_bit(ranks: Ranks) -> None:
    settings = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved"}
    first = ranks.run(train, dict(settings), "Residual")
    second = ranks.run(train, dict(settings), "Residual")
    assert first[0][0] == second[0][0]
    assert all(torch.equal(first[0][1][key], second[0][1][key]) for key in first[0][1])


def test_dropout_is_the_same_whatever_the_schedule(ranks: Ranks) -> None:
    runs = [
        ranks.run(
            train, {"partitions": 2, "microbatches": 4, "pipeline": pipeline, "active_microbatches": active}, "Dropped"
        )
        for pipeline, active in (("simple", 4), ("interleaved", 1), ("interleaved", 4))
    ]
    losses = [losses for run in runs for losses, _, _ in run]
    assert all(other == losses[0] for other in losses), losses
    assert len(set(losses[0])) == STEPS, "each step draws anew"
