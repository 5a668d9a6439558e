"""Measure what the place in the data and the random numbers add to a step and to a save, and a resume in an epoch."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, skip_first_batches
from ranks import checkpoint, network
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.utils.data import DataLoader, Dataset

from herringbone_parallel.torch.position.api import Training

# In the same process and in turn: others that use the machine meet both.
PAIRS = 30


class Index(Dataset[Any]):
    def __init__(self, samples: int, width: int = 1) -> None:
        self.samples, self.row = samples, torch.ones(width)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.row


def cost(folder: str, width: int, layers: int, steps: int) -> dict[str, Any]:
    """Return the milliseconds that a step and a save take alone and what is added, with a 95 % bound.

    Steps alone, and steps whose place is counted, come one by one in turn on one processor. A pair is the difference of
    two medians, of the processor's time in the two places where anything is added: where a batch is taken, and behind
    the optimizer. The forward and the backward between them, which empty the processor's caches, vary by more than is
    added. With `draws`, each step also draws from Python's and NumPy's random numbers, whose states are read then.
    """
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model = network(width, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    loaders = [DataLoader(Index(32 * steps, width), batch_size=32, shuffle=True) for _ in range(2)]
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loaders[1])
    count, spent = training._completed, [0.0]

    def timed_part(call: Callable[..., Any]) -> Callable[..., Any]:
        def part(*arguments: Any) -> Any:
            begin = time.process_time()
            result = call(*arguments)
            spent[0] += (time.process_time() - begin) * 1e3
            return result

        return part

    def step(batches: Iterator[Any], is_counted: bool, draws: bool) -> tuple[float, float]:
        training._completed = timed_part(count if is_counted else lambda *_: None)
        begin, spent[0] = time.process_time(), 0.0
        batch = timed_part(next)(batches)
        if draws:
            random.uniform(0, np.random.rand())  # noqa: S311
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        return (time.process_time() - begin) * 1e3, spent[0]

    def pair(draws: bool) -> tuple[float, float]:
        """Return the median of a step alone, and what is added to one."""
        batches = [iter(loader) for loader in loaders]
        times: list[list[tuple[float, float]]] = [[], []]
        for number in range(steps):
            for kind in (number % 2, 1 - number % 2):
                times[kind].append(step(batches[kind], bool(kind), draws))
        (without, own), (_, added) = ([statistics.median(column) for column in zip(*one, strict=True)] for one in times)
        return without, added - own

    def bare() -> None:
        # What Training saves, without place and numbers.
        state = {"model": get_model_state_dict(model), "optimizer": training._state()["optimizer"]}
        checkpoint.save(folder, "bare", state)

    results: dict[str, Any] = {}
    for name, draws in (("step", False), ("step_draws", True)):
        pair(draws)
        pairs = [pair(draws) for _ in range(PAIRS)]
        without = statistics.median(one for one, _ in pairs)
        added = bound([two for _, two in pairs])
        results |= {
            f"{name}_ms": round(without, 3),
            f"{name}_added_ms": added,
            f"{name}_added_share": round(added["most"] / without, 5),
        }
    bare(), training.save()
    saves, on_top = in_pairs(lambda: timed(bare) * 1e3, lambda: timed(lambda: training.save("full")) * 1e3)
    return {**results, "save_ms": round(saves, 2), "save_added_ms": bound(on_top)}


def in_pairs(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, list[float]]:
    """Return the median of the first, and what the second takes more in each pair; each pair begins with another."""
    ones, differences = [], []
    for pair in range(PAIRS):
        if pair % 2:
            two = second()
            one = first()
        else:
            one = first()
            two = second()
        ones.append(one)
        differences.append(two - one)
    return statistics.median(ones), differences


def bound(differences: Sequence[float]) -> dict[str, float]:
    """Return the median, and the upper end of its 95 % interval by 2,000 samples of the pairs."""
    chance = random.Random(1)  # noqa: S311
    medians = sorted(statistics.median(chance.choices(differences, k=len(differences))) for _ in range(2000))
    return {"median": round(statistics.median(differences), 4), "most": round(medians[1950], 4)}


def epoch(folder: str, samples: int) -> dict[str, Any]:
    """Return the seconds until the first batch of a fresh epoch, and of one that goes on in its middle.

    `accelerate` passes over the batches before the place by `skip_first_batches`, and `reading` is the time in which a
    plain loop would read them again, by 2,000 of them.
    """
    batch = 100
    ours = Path(folder, "epoch")

    def data() -> DataLoader[Any]:
        return DataLoader(Index(samples), batch_size=batch, shuffle=True)

    def first_batch(folder: Path) -> tuple[float, Training, DataLoader[Any], torch.optim.Optimizer]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        loader = data()
        training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
        seconds = timed(lambda: (training.resume(), next(iter(loader))))
        return seconds, training, loader, optimizer

    def skipped() -> float:
        loader = Accelerator(cpu=True).prepare(data())
        return timed(lambda: next(iter(skip_first_batches(loader, samples // 2 // batch))))

    torch.manual_seed(1)
    _, training, loader, optimizer = first_batch(ours)
    # As if half an epoch was used, without reading it.
    batches = iter(loader)
    next(batches)
    loader._herringbone_tracker.taken = samples // 2 // batch
    optimizer.step()
    training.save()
    rounds = [(first_batch(Path(folder, f"fresh-{turn}"))[0], first_batch(ours)[0], skipped()) for turn in range(3)]
    fresh, middle, accelerate = (statistics.median(column) for column in zip(*rounds, strict=True))
    batches = iter(data())
    next(batches)
    reading = timed(lambda: [next(batches) for _ in range(2000)]) / 2000 * samples / 2 / batch
    return {"fresh_s": fresh, "middle_s": middle, "accelerate_s": accelerate, "reading_s": reading}


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
