"""Loops as users write them, ended after each of their saves: no sample is lost or repeated, or the save is refused."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position.api import Shards, Training

SAMPLES, EPOCHS = 20, 2


class EndedError(Exception):
    """The training ends here, as if it was killed behind a save."""


class Numbered(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Script:
    """A training with one or two loaders: saves behind each step, and ends behind one of them."""

    def __init__(self, folder: Path, stop: int, **loaders: DataLoader[Any]) -> None:
        model = nn.Linear(1, 1)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        self.training = Training(folder=folder, model=model, optimizer=self._optimizer, **loaders)
        self.training.resume()
        self._stop, self.seen = stop, list[Any]()

    def step(self, *batches: torch.Tensor, save: bool = True) -> None:
        self._optimizer.step()
        self.seen.append([self.training.epoch, *(batch.flatten().tolist() for batch in batches)])
        if save:
            self.training.save()
        if self.training.step == self._stop:
            raise EndedError


Run = Callable[[Path, int], list[Any]]


def ended(run: Callable[[Script], None], script: Script) -> list[Any]:
    with contextlib.suppress(EndedError):
        run(script)
    return script.seen


def looking(folder: Path, stop: int) -> list[Any]:
    """A look at the first batch, and a pass for the accuracy, in the middle of an epoch."""
    torch.manual_seed(1)
    loader: DataLoader[Any] = DataLoader(Numbered(), batch_size=3, shuffle=True)

    def run(script: Script) -> None:
        for _ in range(script.training.epoch, EPOCHS):
            for batch in loader:
                if script.training.step % 3 == 1:
                    next(iter(loader))
                if script.training.step % 5 == 2:
                    assert sum(len(one) for one in loader) == SAMPLES
                script.step(batch)

    return ended(run, Script(folder, stop, loader=loader))


def zipped(folder: Path, stop: int) -> list[Any]:
    """Two loaders of equal length."""
    torch.manual_seed(1)
    loaders = [DataLoader(Numbered(), batch_size=3, shuffle=True) for _ in range(2)]

    def run(script: Script) -> None:
        for _ in range(script.training.epoch, EPOCHS):
            for first, second in zip(*loaders, strict=True):
                script.step(first, second)

    return ended(run, Script(folder, stop, first=loaders[0], second=loaders[1]))


def accumulated(folder: Path, stop: int) -> list[Any]:
    """Steps of four batches, and of those that are left at an epoch's end."""
    torch.manual_seed(1)
    loader: DataLoader[Any] = DataLoader(Numbered(), batch_size=2, shuffle=True)

    def run(script: Script) -> None:
        batches: list[torch.Tensor] = []
        for _ in range(script.training.epoch, EPOCHS):
            for number, batch in enumerate(loader, script.training.batch):
                batches.append(batch)
                if (number + 1) % 4 == 0 or number + 1 == len(loader):
                    script.step(torch.cat(batches))
                    batches.clear()

    return ended(run, Script(folder, stop, loader=loader))


class Growing(Sampler[int]):
    """More samples in each epoch."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return 8 + 4 * self._epoch

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(len(self)).tolist())


def curriculum(folder: Path, stop: int) -> list[Any]:
    torch.manual_seed(1)
    sampler = Growing()
    loader: DataLoader[Any] = DataLoader(Numbered(), batch_size=3, sampler=sampler)

    def run(script: Script) -> None:
        for epoch in range(script.training.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for batch in loader:
                script.step(batch)

    return ended(run, Script(folder, stop, loader=loader))


class Counting(IterableDataset[Any]):
    """A stream with an epoch, whose order depends on it."""

    def __init__(self) -> None:
        self.epoch = self.used = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "used": self.used}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.used = state["epoch"], state["used"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = np.random.RandomState(self.epoch).permutation(SAMPLES).tolist()
        for index in order[self.used :]:
            self.used += 1
            yield torch.tensor([float(index)])
        self.used = 0


def streamed(folder: Path, stop: int) -> list[Any]:
    torch.manual_seed(1)
    dataset = Counting()
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=3)

    def run(script: Script) -> None:
        for epoch in range(script.training.epoch, EPOCHS):
            dataset.set_epoch(epoch)
            for batch in loader:
                script.step(batch)

    return ended(run, Script(folder, stop, loader=loader))


@pytest.mark.parametrize("run", [looking, zipped, accumulated, curriculum, streamed])
def test_each_end_goes_on_with_the_next_sample(tmp_path: Path, run: Run) -> None:
    whole = run(tmp_path / "whole", 0)
    for stop in range(1, len(whole)):
        folder = tmp_path / str(stop)
        assert run(folder, stop) + run(folder, 0) == whole, f"after step {stop}"


class OfBlocks(Sampler[int]):
    """Shuffles a hundred at a time, by the numbers of the training."""

    def __len__(self) -> int:
        return 300

    def __iter__(self) -> Iterator[int]:
        for begin in range(0, 300, 100):
            yield from random.sample(range(begin, begin + 100), 100)


class Noisy(Numbered):
    """Has numbers of its own."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng(1)


def steps_of(
    folder: Path, loader: DataLoader[Any], between: Callable[[], Any] = lambda: None, read: Any = None
) -> None:
    script = Script(folder, 0, loader=loader)
    for batch in loader if read is None else read:
        between()
        script.step(batch)


def test_what_nobody_can_repeat_is_refused_by_name(tmp_path: Path) -> None:
    shared = torch.Generator().manual_seed(1)
    blocks: DataLoader[Any] = DataLoader(list(range(300)), sampler=OfBlocks(), batch_size=20)
    cases: list[tuple[str, Callable[[], None]]] = [
        ("draws random numbers while it is read", lambda: steps_of(tmp_path / "a", blocks)),
        (
            "drawn from elsewhere, too",
            lambda: steps_of(
                tmp_path / "b",
                DataLoader(Numbered(), shuffle=True, generator=shared),
                lambda: torch.rand((), generator=shared),
            ),
        ),
        ("Noisy draws from a Generator of its own", lambda: steps_of(tmp_path / "c", DataLoader(Noisy()))),
        (
            "Noisy draws from a Generator of its own",
            lambda: steps_of(tmp_path / "d", DataLoader(Subset(Noisy(), [0, 1]))),
        ),
        (
            "without a batch of the loader",
            lambda: steps_of(tmp_path / "e", DataLoader(Numbered()), read=DataLoader(Numbered())),
        ),
    ]
    for message, run in cases:
        with pytest.raises(ParallelError, match=message):
            run()


def test_a_loop_that_ends_early_is_told_how(tmp_path: Path) -> None:
    loader: DataLoader[Any] = DataLoader(Numbered(), batch_size=3)
    script = Script(tmp_path, 0, loader=loader)
    for number, batch in enumerate(loader):
        if number == 2:
            break
        script.step(batch, save=False)
    with pytest.raises(ParallelError, match="islice"):
        script.training.save()


def test_checkpoints_without_their_file_newest_are_found(tmp_path: Path) -> None:
    looking(tmp_path, 4)
    (tmp_path / "newest").unlink()
    with pytest.warns(UserWarning, match="has no file `newest`; the checkpoint 'step-4' is used instead"):
        assert looking(tmp_path, 5)[0][0] == 0


def read(name: str) -> Iterator[torch.Tensor]:
    return iter([torch.tensor([float(ord(name) * 10 + number)]) for number in range(10)])


def test_a_worker_that_has_read_nothing_goes_on_too(tmp_path: Path) -> None:
    seen: list[Any] = []
    for workers in (1, 2):
        loader: DataLoader[Any] = DataLoader(Shards(list("abcd"), read), batch_size=2, num_workers=workers)
        script = Script(tmp_path, 0, loader=loader)
        for batch in itertools.islice(loader, 1):
            script.step(batch)
        seen += script.seen
    assert len({value for _, values in seen for value in values}) == 4
