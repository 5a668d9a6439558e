"""The main loop of every training script: all epochs, their log, the target, and the model at the end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from common.order import Order
from herringbone_parallel.run_log import RunLog


class Training(Protocol):
    """The part of the loop that each example implements. `order` belongs to the current epoch."""

    model: Any
    order: Order
    epochs: int

    def epoch(self, number: int) -> Iterator[float]:
        """Train one epoch, numbered from 0. Yield the loss of each step, averaged over all ranks."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Evaluate on all ranks together and return metrics by name. `--target` refers to the first metric."""
        ...


class World(Protocol):
    """This rank's number, and the number of ranks."""

    rank: int
    ranks: int

    def total(self, *values: Any) -> list[float]:
        """Return the sum of each value over the ranks."""
        ...

    def gather(self, text: str) -> list[str]:
        """Return all ranks' lines of text, on every rank."""
        ...


class Framework(Protocol):
    """Functions that differ between frameworks. The modules `common.for_*.world` implement them."""

    def join(self) -> World:
        """Join the other ranks."""
        ...

    def save(self, model: Any, folder: Path) -> None:
        """Write the model into a folder."""
        ...

    def leave(self) -> None:
        """End the communication with the other ranks."""
        ...


def run(settings: argparse.Namespace, build: Callable[[Any, Path, Path], Training], framework: Framework) -> None:
    """Join the other ranks, train on the channels `training` and `test`, and save rank 0's model."""
    world = framework.join()
    log = RunLog(ranks=world.ranks, active=world.rank == 0, target=settings.target, alone=settings.alone)
    with log.interval("init"):
        training = build(world, *(Path(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAINING", "TEST")))
    log.point("global_batch_size", settings.global_batch)
    log.point("seed", settings.seed)
    step = 0
    for epoch in range(training.epochs):
        with log.epoch(epoch + 1):
            for loss in training.epoch(epoch):
                step += 1
                log.count(training.order.global_batch)
                if world.rank == 0:
                    print(f"step={step} loss={loss:.7f}")
                if step == settings.steps:
                    break
        # Every rank evaluates: the metrics are sums over ranks, so a rank that skipped them would block the others.
        (name, value), *others = training.evaluate().items()
        for other_name, other_value in others:
            log.point(other_name, other_value, epoch_num=epoch + 1)
        if log.evaluation(name, value, epoch + 1) or step == settings.steps:
            break
    if world.rank == 0:
        framework.save(training.model, Path(os.environ["SM_MODEL_DIR"]))
    log.finish(require_target=settings.require_target)
    framework.leave()
