"""Loss scaling, autocast and clipping over ranks give the results of one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

TWO = {"partitions": 2, "microbatches": 2}
# Every replica gets the same batch here, so that the result is that of one replica.
FOUR = {**TWO, "replicas": 2, "ddp": True}


def scaled(steps: int) -> Any:
    """Train with a scaler; in the second step one rank alone gets an infinite gradient."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))
    scaler = smp.amp.GradScaler(init_scale=1024.0)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(scaler.scale(loss))
        return loss

    scales, moved = [], []
    for step in range(steps):
        optimizer.zero_grad()
        train_step(inputs, target)
        if step == 1 and smp.rank() == 1:
            next(parameter for parameter in model.local_parameters()).grad.fill_(math.inf)
        before = [parameter.detach().clone() for parameter in model.local_parameters()]
        scaler.step(optimizer)
        scaler.update()
        moved.append(any(not torch.equal(old, new) for old, new in zip(before, model.local_parameters(), strict=True)))
        scales.append(scaler.get_scale())
    return scales, moved, model.state_dict()


@pytest.mark.parametrize("parameters", [TWO, FOUR])
def test_an_infinite_gradient_on_one_rank_skips_the_step_on_all(ranks: Ranks, parameters: dict[str, Any]) -> None:
    by_rank = ranks.run(scaled, dict(parameters), 3)
    module, inputs, target = models.build("Chain")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), target).backward()
        optimizer.step()
    for scales, moved, weights in by_rank:
        assert scales == [1024.0, 512.0, 512.0]
        assert moved == [True, False, True]
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(weights[name], tensor, atol=1e-6, rtol=0)


def unwrapped() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.amp.GradScaler().step(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))


def test_the_scaler_requires_the_distributed_optimizer(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=r"takes the smp\.DistributedOptimizer, not the optimizer inside it"):
        ranks.run(unwrapped, {"partitions": 1, "microbatches": 1})


def clipped(norm_type: float) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Tied")
    model = smp.DistributedModel(module)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    train_step(inputs, target)
    norm = smp.clip_grad_norm_(model.parameters(), 0.05, norm_type)
    return norm, {name: parameter.grad for name, parameter in model.local_named_parameters()}


@pytest.mark.parametrize(
    ("parameters", "norm_type"), [(TWO, 1.0), (TWO, 2.0), (TWO, math.inf), (FOUR, 1.0), (FOUR, 2.0)]
)
def test_clipping_is_by_the_norm_of_the_whole_model(ranks: Ranks, parameters: dict[str, Any], norm_type: float) -> None:
    by_rank = ranks.run(clipped, dict(parameters), norm_type)
    module, inputs, target = models.build("Tied")
    nn.functional.cross_entropy(module(inputs), target).backward()
    expected = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05, norm_type)
    gradients = {name: gradient for _, part in by_rank for name, gradient in part.items()}
    for norm, _ in by_rank:
        torch.testing.assert_close(norm, expected)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-7, rtol=1e-5)


def in_bfloat16() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        loss = nn.functional.cross_entropy(output.float(), target)
        model.backward(loss)
        return loss, str(output.dtype)

    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss, dtypes = train_step(inputs, target)
        optimizer.step()
        losses.append(loss.reduce_mean().item())
    return losses, dtypes


def test_bfloat16_autocast_trains_as_in_one_process(ranks: Ranks) -> None:
    module, inputs, target = models.build("Chain")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = module(inputs)
        loss = nn.functional.cross_entropy(output.float(), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for rank_losses, dtypes in ranks.run(in_bfloat16, dict(TWO)):
        assert dtypes == ["torch.bfloat16"] * 2
        assert rank_losses == pytest.approx(losses, abs=5e-3)
