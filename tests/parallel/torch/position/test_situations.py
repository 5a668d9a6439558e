"""What has gone wrong with restarts elsewhere, done to our own loops; docs/understand/restarts.md names the reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position.training import Training
from tests.parallel.torch.ranks import Ranks

Parts = tuple[Training, nn.Module, torch.optim.Optimizer, DataLoader[Any]]


def make(folder: Path | str, optimizer_of: Callable[..., torch.optim.Optimizer], sampler: Any = None) -> Parts:
    torch.manual_seed(1)
    dataset = TensorDataset(torch.arange(16), torch.rand(16, 2))
    model = nn.Linear(2, 1)
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler(dataset) if sampler else None, shuffle=not sampler)
    return Training(folder=folder, model=model, optimizer=optimizer, loader=loader), model, optimizer, loader


def train(parts: Parts, steps: int) -> None:
    training, model, optimizer, loader = parts
    for _, inputs in itertools.islice(loader, steps):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    training.save()


KINDS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam]


@pytest.mark.parametrize(("saved", "now"), list(itertools.permutations(KINDS, 2)))
def test_a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing(
    tmp_path: Path, saved: type[torch.optim.Optimizer], now: type[torch.optim.Optimizer]
) -> None:
    train(make(tmp_path, saved), 2)
    training, model, optimizer, _ = make(tmp_path, now)
    before = [value.tolist() for value in model.parameters()]
    with pytest.raises(ParallelError, match=f"is the state of {saved.__name__}, and .* is {now.__name__}: go on"):
        training.resume()
    assert ([value.tolist() for value in model.parameters()], optimizer.state) == (before, {})


def interrupted(folder: str) -> tuple[list[int], list[int]]:
    """Save between a step's backward and its update, as when a peer is gone; return its samples and the next ones."""
    training, model, _, loader = make(folder, torch.optim.Adam, DistributedSampler)
    train((training, model, training._optimizers["optimizer"], loader), 2)
    indices, inputs = next(iter(loader))
    model(inputs).sum().backward()
    training.save("interrupted")
    again, _, _, loader = make(folder, torch.optim.Adam, DistributedSampler)
    again.resume("interrupted")
    return indices.tolist(), next(iter(loader))[0].tolist()


def test_the_batch_of_a_step_that_is_not_complete_comes_again_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    (first, first_again), (second, second_again) = ranks.shard(
        interrupted, 2, {"hybrid_shard_degree": 1}, str(tmp_path)
    )
    assert (first, second) == (first_again, second_again)
    assert not {*first} & {*second}


def statistics(folder: str, stop: int) -> list[float]:
    """Train with statistics that no rank takes from another; save at a step, and end there, or go on."""
    torch.manual_seed(1)
    dataset = TensorDataset(torch.rand(32, 3))
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
    training.resume()
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        if training.step == stop:
            training.save()
            break
    assert isinstance(net[0], nn.BatchNorm1d)
    return [*net[0].running_mean.tolist(), *net[0].running_var.tolist(), int(net[0].num_batches_tracked)]  # type: ignore[union-attr, arg-type]


def test_each_rank_goes_on_with_the_statistics_of_its_own_samples(ranks: Ranks, tmp_path: Path) -> None:
    whole = ranks.shard(statistics, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "a"), 0)
    ranks.shard(statistics, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 2)
    assert ranks.shard(statistics, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 0) == whole
    assert whole[0] != whole[1]
