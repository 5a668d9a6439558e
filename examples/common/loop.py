"""The main loop of every training script: all epochs, their log, the target, and the model at the end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from common.order import Order
from herringbone_parallel.run_log import RunLog

# Steps between two checkpoints, unless `--save-every` names another number.
SAVE_EVERY = 100


@dataclass
class Place:
    """The completed steps of all epochs, the current epoch, numbered from 0, and the completed steps of that epoch."""

    step: int = 0
    epoch: int = 0
    step_of_epoch: int = 0

    def state_dict(self) -> dict[str, int]:
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


class Training(Protocol):
    """The part of the loop that each example implements. `order` belongs to the current epoch."""

    model: Any
    order: Order
    epochs: int
    # What the next step depends on, by name. Only trainings with checkpoints have it.
    parts: dict[str, Any]

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch, numbered from 0, from its step `first` on.

        Yield the loss of each step, averaged over all ranks.
        """
        ...

    def evaluate(self) -> dict[str, float]:
        """Evaluate on all ranks together and return metrics by name. `--target` refers to the first metric."""
        ...


class Checkpoints(Protocol):
    """Saves a training in the middle of epochs, and has continued it at its place."""

    def completed(self) -> None:
        """Save after a completed step, if it is time."""
        ...

    def finish(self) -> None:
        """Wait for the last save."""
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


def run(
    settings: argparse.Namespace,
    build: Callable[[Any, Path, Path], Training],
    framework: Framework,
    checkpointing: Callable[[Training, Any, Place, int], Checkpoints] | None = None,
) -> None:
    """Join the other ranks, train on the channels `training` and `test`, and save rank 0's model.

    With `checkpointing`, a job saves every `--save-every` steps, and a resumed job continues after the newest
    checkpoint.
    """
    if checkpointing is None and settings.save_every is not None:
        raise ValueError(f"--save-every {settings.save_every} is for PyTorch's script: leave it out")
    world = framework.join()
    log = RunLog(ranks=world.ranks, active=world.rank == 0, target=settings.target, alone=settings.alone)
    with log.interval("init"):
        training = build(world, *(Path(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAINING", "TEST")))
        place, checkpoints = Place(), None
        if checkpointing is not None and "SM_CHECKPOINT_DIR" in os.environ:
            checkpoints = checkpointing(training, world, place, settings.save_every or SAVE_EVERY)
    log.point("global_batch_size", settings.global_batch)
    log.point("seed", settings.seed)
    last = sys.maxsize if settings.steps is None else settings.steps
    for epoch in range(place.epoch, training.epochs):
        with log.epoch(epoch + 1):
            for loss in islice(training.epoch(epoch, place.step_of_epoch), max(0, last - place.step)):
                place.step, place.epoch, place.step_of_epoch = place.step + 1, epoch, place.step_of_epoch + 1
                log.count(training.order.global_batch)
                if world.rank == 0:
                    print(f"step={place.step} loss={loss:.7f}")
                if checkpoints is not None:
                    checkpoints.completed()
        place.step_of_epoch = 0
        # Every rank evaluates: the metrics are sums over ranks, so a rank that skipped them would block the others.
        (name, value), *others = training.evaluate().items()
        for other_name, other_value in others:
            log.point(other_name, other_value, epoch_num=epoch + 1)
        if log.evaluation(name, value, epoch + 1) or place.step >= last:
            break
    if world.rank == 0:
        framework.save(training.model, Path(os.environ["SM_MODEL_DIR"]))
    if checkpoints is not None:
        checkpoints.finish()
    log.finish(require_target=settings.require_target)
    framework.leave()
