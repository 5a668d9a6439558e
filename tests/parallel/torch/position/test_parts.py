"""What stands beside the loader in a training goes on with it; where it cannot, the reason has a name."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint import saving
from herringbone_parallel.torch.position.api import Training

Made = Callable[[torch.optim.Optimizer], Any]


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.ReduceLROnPlateau(optimizer, patience=0)


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    parts = [schedulers.ConstantLR(optimizer, 0.1, 3), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.SequentialLR(optimizer, parts, [3])


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.OneCycleLR(optimizer, 0.2, total_steps=40)


def by_hand(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.LambdaLR(optimizer, lambda step: 0.9**step)


def train(folder: Path, made: Made, compiled: str, stop: int) -> tuple[list[Any], Any]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    if compiled == "a part":
        net[0] = torch.compile(net[0], backend="eager")
    model: Any = torch.compile(net, backend="eager") if compiled == "whole" else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = made(optimizer)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    inputs = torch.rand(24, 4)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    training = Training(
        folder=folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler, average=average,
        scaler=scaler,
    )  # fmt: skip
    training.resume()
    seen = []
    for _ in range(training.epoch, 2):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = (model(batch) - targets).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(net)
            scheduler.step(*[loss.item()] * isinstance(scheduler, schedulers.ReduceLROnPlateau))
            seen.append((training.step, loss.item(), optimizer.param_groups[0]["lr"], scaler.get_scale()))
            if training.step == stop:
                training.save()
                return seen, None
    return seen, [value.tolist() for value in (*net.parameters(), *average.parameters())]


@pytest.mark.parametrize(
    ("made", "compiled", "compiled_before"),
    [(plateau, "", ""), (sequential, "a part", "a part"), (one_cycle, "whole", "whole"), (by_hand, "whole", "")],
)
def test_goes_on_with_equal_bits(tmp_path: Path, made: Made, compiled: str, compiled_before: str) -> None:
    whole = train(tmp_path / "a", made, compiled, 0)
    before, _ = train(tmp_path / "b", made, compiled_before, 8)
    after, weights = train(tmp_path / "b", made, compiled, 0)
    assert (before + after, weights) == whole


def started(folder: Path, loader: DataLoader[Any], **parts: Any) -> tuple[Training, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Training(folder=folder, model=model, optimizer=optimizer, loader=loader, **parts), optimizer


def numbers(count: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(float(count)).unsqueeze(1)), batch_size=2, **options)


def one_ahead(loader: DataLoader[Any]) -> Iterator[Any]:
    """Prefetch as scripts with streams of a device do."""
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        current, batch = batch, next(batches, None)
        yield current


@pytest.mark.parametrize("kept", [itertools.cycle, one_ahead])
def test_batches_of_the_past_are_refused(tmp_path: Path, kept: Callable[[Any], Iterator[Any]]) -> None:
    training, optimizer = started(tmp_path, loader := numbers(8))
    for _ in itertools.islice(kept(loader), 5):
        optimizer.step()
    with pytest.raises(ParallelError, match=r"a step was completed after the end of the pass.* itertools\.cycle"):
        training.save()


def test_several_passes_and_loaders_are_not_refused(tmp_path: Path) -> None:
    other = numbers(4)
    training, optimizer = started(tmp_path, loader := numbers(7), other=other)
    for _ in range(2):
        for number, _ in enumerate(loader):
            if number % 3 == 2:
                optimizer.step()
        # What is left of an accumulation.
        optimizer.step()
        for _ in other:
            optimizer.step()
    training.save()


def test_batches_that_another_thread_takes_are_refused(tmp_path: Path) -> None:
    training, optimizer = started(tmp_path, loader := numbers(8))
    batches, fetched = iter(loader), []
    thread = threading.Thread(target=lambda: fetched.extend(itertools.islice(batches, 2)))
    thread.start()
    thread.join()
    optimizer.step()
    with pytest.raises(ParallelError, match="taken in another thread"):
        training.save()


def test_samples_that_fill_the_last_round_are_counted(tmp_path: Path) -> None:
    for count, ranks, batch_size in ((7, 3, 2), (8, 4, 2), (5, 4, 1), (2, 4, 1)):
        dataset = TensorDataset(torch.arange(count))
        seen: list[int] = []
        for rank in range(ranks):
            sampler: DistributedSampler[Any] = DistributedSampler(dataset, ranks, rank)
            loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
            training, optimizer = started(tmp_path, loader)
            for (batch,) in loader:
                seen += batch[: len(batch) - training.repeated].tolist()
                optimizer.step()
        assert sorted(seen) == list(range(count))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = started(tmp_path, numbers(8))
    training.save("before")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saving, "write", full)
    words = rf"'after' cannot be written into {tmp_path}: No space left on device.*keep fewer checkpoints"
    with pytest.raises(ParallelError, match=words):
        training.save("after", in_background=True).result()
    assert training.resume()
