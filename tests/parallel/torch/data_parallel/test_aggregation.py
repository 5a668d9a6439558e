"""`aggregation_frequency`: an unchanged script with one batch per step makes the steps of larger batches."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import session
from herringbone_parallel.torch.data_parallel.api import install
from tests.parallel.torch.data_parallel.ranks import JobRanks

OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def net(kind: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(kind)


def batches(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(rank + 1)
    return [torch.randn(4, 8) for _ in range(6)]


def train(every: int, optimizer_name: str, settings: dict[str, Any]) -> tuple[list[torch.Tensor], list[bool], int]:
    """Train one batch per step; return the weights, the backwards that left gradients, and the number of sums."""
    os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"] = str(every)
    try:
        install()
        dist.init_process_group("smddp")
        model = DistributedDataParallel(net(), **settings)
    finally:
        del os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"]
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    before = session.current().stats().buffers
    left = []
    for batch in batches(dist.get_rank()):
        output = model(batch)
        optimizer.zero_grad()  # between forward and backward, where it could delete added gradients
        output.square().mean().backward()
        left.append(all(parameter.grad is not None for parameter in model.parameters()))
        optimizer.step()
    return [p.detach() for p in model.parameters()], left, session.current().stats().buffers - before


def joined(every: int, ranks: int, optimizer_name: str, times: int = 1) -> list[torch.Tensor]:
    """Make the same steps in one process, on batches `every` x `ranks` times as large."""
    model = net()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    batches_of_rank = [batches(rank) for rank in range(ranks)]
    for start in range(0, 6, every):
        optimizer.zero_grad()
        batch = torch.cat([rank_batches[start + i] for rank_batches in batches_of_rank for i in range(every)])
        (times * model(batch).square().mean()).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def gap(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize(
    "settings", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}], ids=["", "views", "unused"]
)
def test_steps_are_those_of_larger_batches(pair: JobRanks, optimizer_name: str, settings: dict[str, Any]) -> None:
    for weights, left, _ in pair.run(train, 3, optimizer_name, settings):
        assert gap(weights, joined(3, 2, optimizer_name)) <= 1e-6
        assert left == [False, False, True] * 2


def test_gradients_are_summed_over_the_ranks_once_a_step(pair: JobRanks) -> None:
    every_batch, every_third = (pair.run(train, every, "momentum", {"bucket_cap_mb": 1})[0][2] for every in (1, 3))
    assert (every_batch, every_third) == (6, 2)


def train_lone(every: int) -> list[torch.Tensor]:
    return train(every, "adam", {})[0]


def test_one_rank_makes_the_steps_of_a_larger_batch(lone: JobRanks) -> None:
    assert gap(lone.run(train_lone, 3)[0], joined(3, 1, "adam")) <= 1e-6


def train_with_scaler() -> tuple[list[torch.Tensor], list[float]]:
    os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"] = "2"
    install()
    dist.init_process_group("smddp")
    model = DistributedDataParallel(net())
    del os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"]
    optimizer = OPTIMIZERS["adam"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scales = []
    for batch in batches(0):
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [p.detach() for p in model.parameters()], scales


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="a GradScaler for the CPU needs torch 2.3")
def test_a_scaler_waits_for_gradients_and_keeps_one_scale_meanwhile(lone: JobRanks) -> None:
    weights, scales = lone.run(train_with_scaler)[0]
    assert gap(weights, joined(2, 1, "adam")) <= 1e-6
    assert scales == [4.0, 8.0, 8.0, 16.0, 16.0, 32.0]


def train_with_no_sync() -> list[torch.Tensor]:
    """Add up pairs with `no_sync` in the script, while the job adds up two of those."""
    os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"] = "2"
    install()
    dist.init_process_group("smddp")
    model = DistributedDataParallel(net())
    del os.environ["HERRINGBONE_AGGREGATION_FREQUENCY"]
    for index, batch in enumerate(batches(0)[:4]):
        if index % 2 == 0:
            model.zero_grad()
            with model.no_sync():
                (model(batch).square().mean() / 2).backward()
        else:
            (model(batch).square().mean() / 2).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_no_sync_of_the_script_does_not_count(lone: JobRanks) -> None:
    whole = net()
    whole(torch.cat(batches(0)[:4])).square().mean().backward()
    assert gap(lone.run(train_with_no_sync)[0], [p.grad for p in whole.parameters()]) <= 1e-6


def train_static() -> str:
    with pytest.raises(ParallelError) as refused:
        train(2, "adam", {"static_graph": True})
    return str(refused.value)


def test_a_static_graph_is_refused(lone: JobRanks) -> None:
    assert "leave one of them out" in lone.run(train_static)[0]


def train_summed(every: int) -> list[torch.Tensor]:
    os.environ["HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"] = "false"
    try:
        return train(every, "momentum", {})[0]
    finally:
        del os.environ["HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_summed_gradients_are_those_of_a_batch_whose_loss_is_a_sum(lone: JobRanks, pair: JobRanks, ranks: int) -> None:
    """The sum of three backwards' mean losses is three times the mean loss of their batches together."""
    summed = (lone if ranks == 1 else pair).run(train_summed, 3)
    assert gap(summed[0], joined(3, ranks, "momentum", times=3)) <= 1e-6
    assert gap(summed[0], joined(3, ranks, "momentum")) > 1e-2
