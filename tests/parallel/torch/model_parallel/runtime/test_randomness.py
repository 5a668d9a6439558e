"""Random numbers: the same for a seed whatever the schedule, with the right gradients through dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.pairwise import pairwise
from tests.parallel.torch.model_parallel.models.case import CLASSES, WIDTH, Case
from tests.parallel.torch.model_parallel.models.layers import DROPPED
from tests.parallel.torch.model_parallel.test_equality import (
    STEPS,
    assert_equal,
    settings,
    train,
    train_case,
    train_case_alone,
)
from tests.parallel.torch.ranks import Ranks


class Masked(nn.Module):
    """Dropout that records its masks, or takes them from a list."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor] = []
        self.replayed: Iterator[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = nn.functional.dropout(torch.ones_like(x), 0.4)
        mask = drawn if self.replayed is None else next(self.replayed)
        self.masks.append(mask)
        return x * mask


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Masked()) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def masks_of(module: nn.Module) -> list[list[torch.Tensor]]:
    return [inner.masks for inner in module.modules() if isinstance(inner, Masked)]


def train_masked() -> Any:
    built: list[nn.Module] = []
    trained = train_case(Case(Net, prepare=built.append), "scattered", torch.float64)
    return trained, masks_of(built[0])


@pytest.mark.parametrize(
    ("partitions", "microbatches", "pipeline"), pairwise((2, 3, 4), (1, 4), ("simple", "interleaved"))
)
def test_dropout_trains_as_one_process_does_with_the_same_masks(
    ranks: Ranks, partitions: int, microbatches: int, pipeline: str
) -> None:
    by_rank = ranks.run(train_masked, settings(partitions, microbatches, pipeline, "scattered"))
    # Each module is on one rank. Its masks are in the order of steps, and of microbatches within a step.
    masks = [next(filter(None, per_rank)) for per_rank in zip(*(masks for _, masks in by_rank), strict=True)]
    assert [len(drawn) for drawn in masks] == [STEPS * microbatches] * 4

    def replaying() -> nn.Module:
        module = Net()
        for dropout, drawn in zip((block[2] for block in module.blocks), masks, strict=True):
            dropout.replayed = iter(drawn)
        return module

    alone = train_case_alone(Case(replaying), microbatches, torch.float64)
    assert_equal([trained for trained, _ in by_rank], alone, torch.float64)


def train_dropped() -> Any:
    return train_case(DROPPED, "automatic", torch.float32)


@pytest.mark.parametrize("partitions", [2, 3, 4])
def test_dropout_is_the_same_whatever_the_schedule(ranks: Ranks, partitions: int) -> None:
    runs = [
        ranks.run(train_dropped, {"partitions": partitions, "microbatches": 4, "pipeline": pipeline, **active})
        for pipeline, active in (
            ("simple", {}),
            ("interleaved", {"active_microbatches": 1}),
            ("interleaved", {"active_microbatches": 4}),
        )
    ]
    losses = [trained.losses for run in runs for trained in run]
    assert all(other == losses[0] for other in losses), losses
    assert len(set(losses[0])) == STEPS, "each step draws new numbers"


def test_same_seed_same_numbers_to_the_last_bit(ranks: Ranks) -> None:
    first, second = (
        ranks.run(train, settings(2, 4, "interleaved", "scattered"), "Residual", "scattered", torch.float32)
        for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert one.losses == other.losses
        assert all(torch.equal(one.parameters[key], other.parameters[key]) for key in one.parameters)
