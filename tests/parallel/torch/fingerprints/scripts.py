"""A script with faults that can be planted, run in processes of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Set
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from herringbone_contract.rehearsal.records import KIND, Run, Step, pieces, read
from tests.parallel.torch.processes import PROCESSES

EPOCHS, SAMPLES, BATCH = 3, 32, 8
_NUMBERS = count()


def run(function: Callable[..., object], *args: Any) -> list[dict[str, Any]]:
    """Call a function in a new process that records its steps; return their events."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_recorded, args=(sender, next(_NUMBERS), function, args))
    process.start()
    sender.close()
    events = receiver.recv()
    process.join()
    assert isinstance(events, list), events
    return events


def _recorded(sender: Any, number: int, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    from herringbone_parallel.torch.fingerprints.recorder import Recorder

    torch.set_num_threads(1)
    events: list[dict[str, Any]] = []

    def send(step: Step, rank: int | None) -> None:
        events.extend({"kind": KIND, "t": 0.0, "rank": rank, **piece} for piece in pieces(str(number), step))

    Recorder(send).watch()
    try:
        function(*args)
        sender.send(events)
    except BaseException as error:
        sender.send(repr(error))
        raise


def steps_of(events: Iterable[dict[str, Any]]) -> list[Step]:
    """Return the steps of one process."""
    [[process]] = read(events).processes.values()
    return process.steps


class Letters(Dataset[Any]):
    """Samples by names that are kept in a set."""

    def __init__(self, faults: Set[str]) -> None:
        # Other processes have another order of hashes.
        salt = os.urandom(8) if "set order" in faults else b""
        self._names = sorted(range(SAMPLES), key=lambda name: hash((salt, name)))
        self._own = random.Random() if "augmentation" in faults else random
        self._inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> Any:
        name = self._names[place]
        return self._inputs[name] * (1 + self._own.random()), self._inputs[name].sum() * name


def train(folder: str, faults: Set[str], steps: int) -> None:
    """Go on from the newest checkpoint, for so many steps; faults are what is not restored, or drawn without a seed."""
    torch.manual_seed(3)
    random.seed(3)
    loader = DataLoader(Letters(faults), BATCH, shuffle=True, generator=(order := torch.Generator()))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    path = Path(folder, "last.pt")
    first = 0
    if path.exists():
        state = torch.load(path, weights_only=False)
        first = state["epoch"]
        for name, part in parts.items():
            if name not in faults:
                part.load_state_dict(state[name])
        if "random" not in faults:
            torch.set_rng_state(state["random"][0])
            random.setstate(state["random"][1])
    for epoch in range(first, EPOCHS):
        order.manual_seed(epoch if "place" not in faults else int.from_bytes(os.urandom(4)))
        for inputs, targets in loader:
            if not steps:
                return
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs).flatten(), targets).backward()
            optimizer.step()
            scheduler.step()
            steps -= 1
        numbers = torch.get_rng_state(), random.getstate()
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"epoch": epoch + 1, "random": numbers, **states}, path)


def undisturbed(folder: Path, faults: Set[str] = frozenset()) -> Run:
    """Train to the end in a new folder."""
    folder.mkdir()
    return read(run(train, str(folder), faults, 99))


def restarted(folder: Path, faults: Set[str] = frozenset(), steps: int = 6) -> Run:
    """Train for some steps, and go on in another process."""
    folder.mkdir()
    return read([*run(train, str(folder), faults, steps), *run(train, str(folder), faults, 99)])
