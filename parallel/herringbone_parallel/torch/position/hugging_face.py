"""Let Hugging Face's Trainer go on in the middle of an epoch; the script stays as it is.

    _save_rng_state                  [1] also writes the rank's place and all its random numbers
    _init_training_state             [2] computes epoch, batches and the steps that are left from the place
    _load_optimizer_and_scheduler    [3] the scheduler goes on at its share of the steps
    _load_rng_state                  [4] the loader restores the numbers, at the first batch that it reads

transformers divides the number of steps by that of an epoch, which is another one for another global batch: on twice
the ranks, a training in its middle ends without a step. transformers 4.57 has no [2], so that a changed global batch
is refused there. Read in transformers 4.57 and 5.23.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from herringbone_contract.checkpoint.roll_back import passed_over
from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.job_folders import CHECKPOINT_VARIABLE
from herringbone_parallel.torch.hugging_face_hooks import POSITION_TRAINER
from herringbone_parallel.torch.position import hugging_face_saves, rank_places
from herringbone_parallel.torch.position.prepared import tracker_of


def complete() -> None:
    """Change `Trainer` once, after the import of `transformers.trainer`."""
    require(POSITION_TRAINER)
    module: Any = sys.modules["transformers.trainer"]
    trainer = module.Trainer
    save, load, load_numbers = (
        trainer._save_rng_state,
        trainer._load_optimizer_and_scheduler,
        trainer._load_rng_state,
    )

    # [1]
    def _save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        rank_places.write(output_dir, self.accelerator._dataloaders)

    # [3]
    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        if checkpoint is None:
            return
        place = _place(self, checkpoint)
        if place is None:
            return
        step = json.loads(Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
        if not hasattr(self, "_init_training_state") and place.steps != step:
            raise place.misfit("and this release of transformers counts steps alone")
        # A scheduler of a metric counts no steps.
        if place.steps != step and hasattr(self.lr_scheduler, "lr_lambdas"):
            self.lr_scheduler.last_epoch, self.lr_scheduler._step_count = place.steps, place.steps + 1

    # [4]
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        if checkpoint is None or _place(self, checkpoint) is None:
            load_numbers(self, checkpoint)

    trainer._save_rng_state, trainer._load_rng_state = _save_rng_state, _load_rng_state
    trainer._load_optimizer_and_scheduler = _load_optimizer_and_scheduler
    if hasattr(trainer, "_init_training_state"):
        trainer._init_training_state = _from_place(trainer._init_training_state)
    hugging_face_saves.complete(module)


class _Place:
    """The place from which a Trainer goes on, in its own units: batches of a rank, and steps of the optimizer."""

    # Steps whose data a `roll_back` passes over.
    passed = 0

    def __init__(self, trainer: Any) -> None:
        loader = trainer.accelerator._dataloaders[0]
        tracker = tracker_of(loader)
        assert tracker is not None
        accumulated = trainer.args.gradient_accumulation_steps
        place, batches = tracker.place(), len(loader)
        self.epoch, self.samples = place.epoch, place.samples
        self.batches = batches - tracker.order.left(place.samples)
        self.steps_of_epoch = max(-(-batches // accumulated), 1)
        self.steps = self.epoch * self.steps_of_epoch + self.batches // accumulated
        if self.batches % accumulated:
            raise self.misfit(f"which are {self.batches} batches of now, no multiple of {accumulated} accumulated ones")

    def misfit(self, reason: str) -> ParallelError:
        """Return the error for another global batch."""
        return ParallelError(
            f"the checkpoint's place is sample {self.samples} of epoch {self.epoch}, {reason}: give the global batch"
            " (ranks * per_device_train_batch_size * gradient_accumulation_steps) that the training has begun with"
        )


def _place(trainer: Any, checkpoint: str) -> _Place | None:
    """Let the training loader go on from a checkpoint once; None where the checkpoint or the script has no place."""
    if getattr(trainer, "_herringbone_resumed", ("",))[0] != checkpoint:
        hugging_face_saves.refuse_unfinished(checkpoint)
        loaders, args = trainer.accelerator._dataloaders[:1], trainer.args
        is_resumed = (
            not args.ignore_data_skip
            and bool(loaders)
            and rank_places.resume(checkpoint, loaders)
            and tracker_of(loaders[0]) is not None
        )
        trainer._herringbone_resumed = checkpoint, _passed(trainer, _Place(trainer)) if is_resumed else None
    place: _Place | None = trainer._herringbone_resumed[1]
    return place


def _passed(trainer: Any, place: _Place) -> _Place:
    """Return the place behind the data that a `roll_back` passes over; its steps count as made. [2]"""
    end, _ = passed_over(os.environ.get(CHECKPOINT_VARIABLE))
    if end <= place.steps:
        return place
    if not hasattr(trainer, "_init_training_state"):
        rank_places.notice("roll_back: the data is NOT passed over: this release of transformers counts steps alone")
        return place
    rank_places.notice(f"roll_back: the data of {end - place.steps} steps is passed over, from step {place.steps}")
    tracker = tracker_of(trainer.accelerator._dataloaders[0])
    assert tracker is not None
    tracker.pass_over((end - place.steps) * trainer.args.gradient_accumulation_steps)
    later = _Place(trainer)
    later.passed = later.steps - place.steps
    return later


def _from_place(original: Any) -> Any:
    """Return Trainer's method [2], which returns the epoch to go on in and the number of its batches that are used."""

    def _init_training_state(
        self: Any, max_steps: int, steps_of_epoch: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> Any:
        self._herringbone_resumed = ("",)
        counted = original(self, max_steps, steps_of_epoch, epochs, checkpoint, trial)
        place = None if checkpoint is None else _place(self, checkpoint)
        if place is None:
            rank_places.notice_unpassed()
            return counted
        self.state.global_step += place.passed
        if self.args.max_steps > 0 and not place.passed:
            if counted != (place.epoch, place.batches):
                raise place.misfit("and max_steps counts steps of another global batch")
            return counted
        # A step keeps its number: a checkpoint with a smaller one would not be the newest.
        self.state.max_steps = self.state.global_step + max_steps - place.steps
        return place.epoch, place.batches

    return _init_training_state
