"""What every training script does, whatever it trains: all epochs, their log, the target, and the model at the end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from common.order import Order
from herringbone_parallel.run_log import RunLog


class Training(Protocol):
    """What an example brings, on each rank; `order` is that of the epoch under way."""

    model: Any
    order: Order
    epochs: int

    def epoch(self, number: int) -> Iterator[float]:
        """Train an epoch, numbered from 0; yield the loss of each step, over all ranks."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Return what all ranks together find, by name; the first is what `--target` is about."""
        ...


class Framework(Protocol):
    """What differs between frameworks; for PyTorch it is the module `common.world`."""

    def join(self) -> Any:
        """Meet the other ranks; return which of how many this is, as `rank` and `ranks`."""
        ...

    def save(self, model: Any, folder: Path) -> None:
        """Write the model into a folder."""
        ...

    def leave(self) -> None:
        """Part from the other ranks."""
        ...


def run(settings: argparse.Namespace, build: Callable[[Any, Path, Path], Training], framework: Framework) -> None:
    """Join the other ranks, train on the channels `training` and `test`, and save rank 0's model."""
    world = framework.join()
    log = RunLog(ranks=world.ranks, active=world.rank == 0, target=settings.target, alone=settings.alone)
    with log.interval("init"):
        training = build(world, *(Path(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAINING", "TEST")))
    log.point("global_batch_size", settings.global_batch)
    log.point("seed", settings.seed)
    done = 0
    for epoch in range(training.epochs):
        with log.epoch(epoch + 1):
            for loss in training.epoch(epoch):
                done += 1
                log.count(training.order.global_batch)
                if world.rank == 0:
                    print(f"step={done} loss={loss:.7f}")
                if done == settings.steps:
                    break
        (name, value), *others = training.evaluate().items()
        for other, found in others:
            log.point(other, found, epoch_num=epoch + 1)
        if log.evaluation(name, value, epoch + 1) or done == settings.steps:
            break
    if world.rank == 0:
        framework.save(training.model, Path(os.environ["SM_MODEL_DIR"]))
    log.finish(require_target=settings.require_target)
    framework.leave()
