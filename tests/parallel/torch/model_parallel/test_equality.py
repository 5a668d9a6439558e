"""Equality: training over ranks gives the same losses, gradients, weights and buffers as training in one process.

The one process is plain torch that accumulates the gradients of the same microbatches. `models` has the cases.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from tests.pairwise import pairwise
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.models.case import partition_by_path
from tests.parallel.torch.ranks import Ranks

STEPS = 3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}

Tensors = dict[str, torch.Tensor]


class Trained(NamedTuple):
    """The losses, the first step's gradients, and the tensors after the last step; on a rank, its own part."""

    losses: list[float]
    gradients: Tensors
    parameters: Tensors
    buffers: Tensors


def train(name: str, split: str, dtype: torch.dtype, steps: int = STEPS) -> Trained:
    return train_case(models.ALL[name], split, dtype, steps)


def train_case(case: models.Case, split: str, dtype: torch.dtype, steps: int = STEPS) -> Trained:
    """Train as a user's script does, as one rank; `split` is the placement of the modules, or "automatic"."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = case.build(dtype)
    if split != "automatic":
        for path, partition in partition_by_path(module, smp.pp_size(), split).items():
            smp.set_partition(module.get_submodule(path), partition)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
    case.prepare(module)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return case.step(model, model.backward, inputs, target)

    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(train_step(inputs, target).reduce_mean().item())
        if step == 0:
            gradients = gradients_of(model.local_named_parameters())
        optimizer.step()
    parameters = {name: parameter.detach() for name, parameter in model.local_named_parameters()}
    return Trained(losses, gradients, parameters, dict(model.local_named_buffers()))


@cache
def train_alone(name: str, microbatches: int, dtype: torch.dtype, steps: int = STEPS) -> Trained:
    return train_case_alone(models.ALL[name], microbatches, dtype, steps)


def train_case_alone(case: models.Case, microbatches: int, dtype: torch.dtype, steps: int = STEPS) -> Trained:
    module, inputs, target = case.build(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)

    def backward(tensors: Any, gradients: torch.Tensor | None = None) -> None:
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            start = torch.ones_like(tensor) if gradients is None else gradients
            tensor.backward(start / microbatches, retain_graph=True)

    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        parts = zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True)
        losses.append(sum(case.step(module, backward, *part).item() for part in parts) / microbatches)
        if step == 0:
            gradients = gradients_of(module.named_parameters())
        optimizer.step()
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return Trained(losses, gradients, parameters, dict(module.named_buffers()))


def gradients_of(parameters: Any) -> Tensors:
    return {name: parameter.grad.clone() for name, parameter in parameters if parameter.grad is not None}


def assert_equal(by_rank: list[Trained], alone: Trained, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    for of_rank in by_rank:
        assert of_rank.losses == pytest.approx(alone.losses, abs=tolerance, rel=0)
    for field in ("gradients", "parameters"):
        expected = getattr(alone, field)
        held = [key for of_rank in by_rank for key in getattr(of_rank, field)]
        assert sorted(held) == sorted(expected), f"each of the {field} is on exactly one rank"
        for of_rank in by_rank:
            assert_near(getattr(of_rank, field), expected, tolerance)
    assert {key for of_rank in by_rank for key in of_rank.buffers} == set(alone.buffers)
    for of_rank in by_rank:
        assert_near(of_rank.buffers, alone.buffers, tolerance)


def assert_near(tensors: Tensors, expected: Tensors, tolerance: float) -> None:
    for key, tensor in tensors.items():
        torch.testing.assert_close(
            tensor, expected[key], atol=tolerance, rtol=0, msg=lambda text, key=key: f"{key}: {text}"
        )


def settings(partitions: int, microbatches: int, pipeline: str, split: str) -> dict[str, Any]:
    by_hand = {"auto_partition": False, "default_partition": 0} if split != "automatic" else {}
    return {"partitions": partitions, "microbatches": microbatches, "pipeline": pipeline, **by_hand}


# Any two values of two of these meet in a training: about as many trainings as models times microbatches, where all
# combinations would be thousands.
COVER = pairwise(
    models.ALL,
    (2, 3, 4),
    (1, 2, 4, 8),
    ("simple", "interleaved", "zero_bubble"),
    ("contiguous", "scattered", "automatic"),
    (torch.float64, torch.float32),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "partitions", "microbatches", "pipeline", "split", "dtype"), COVER)
def test_any_training(
    ranks: Ranks, name: str, partitions: int, microbatches: int, pipeline: str, split: str, dtype: torch.dtype
) -> None:
    by_rank = ranks.run(train, settings(partitions, microbatches, pipeline, split), name, split, dtype)
    assert_equal(by_rank, train_alone(name, microbatches, dtype), dtype)


def test_one_partition_is_plain_training_with_microbatches(ranks: Ranks) -> None:
    by_rank = ranks.run(train, {"partitions": 1, "microbatches": 4}, "Chain", "automatic", torch.float64)
    assert_equal(by_rank, train_alone("Chain", 4, torch.float64), torch.float64)
