"""Let loops of Hugging Face's accelerate go on in the middle of an epoch; the script stays as it is.

    prepare(loader)                [1] follows the loader's place
    optimizer.step()               [2] the samples until here are used, where accelerate makes a step
    save_state(folder)             [3] writes each rank's place and random numbers with accelerate's files
    load_state(folder)             [4] the next pass of each loader goes on from there
    skip_first_batches(loader, n)  [5] begins there without reading; the order is that of then

A checkpoint without our files is loaded in accelerate's own way; one whose save was cut is refused. Read
in accelerate 1.13 to 1.15.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.hugging_face_hooks import POSITION_CHECKPOINTS, POSITION_LOADERS, POSITION_OPTIMIZERS
from herringbone_parallel.torch.position import hugging_face_saves, prepared, rank_places


def loaders() -> None:
    """Change accelerate's loaders, after the import of `accelerate.data_loader`. [1] [5]"""
    require(POSITION_LOADERS)
    module: Any = sys.modules["accelerate.data_loader"]
    prepare, skip, iterate = module.prepare_data_loader, module.skip_first_batches, module.DataLoaderShard.__iter__

    def prepare_data_loader(*args: Any, **options: Any) -> Any:
        loader = prepare(*args, **options)
        if reason := prepared.prepare(loader):
            rank_places.notice(f"the place in a loader is not kept: {reason}")
        return loader

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807 - its name
        tracker = prepared.tracker_of(self)
        return iterate(self) if tracker is None else tracker.batches(self, iterate, None)

    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        if prepared.tracker_of(dataloader) is None:
            return skip(dataloader, num_batches)
        return prepared.Skipped(dataloader, iterate, num_batches)

    module.prepare_data_loader, module.skip_first_batches = prepare_data_loader, skip_first_batches
    module.DataLoaderShard.__iter__ = __iter__


def optimizers() -> None:
    """Count steps, after the import of `accelerate.optimizer`. [2]"""
    require(POSITION_OPTIMIZERS)
    cls: Any = sys.modules["accelerate.optimizer"].AcceleratedOptimizer
    original = cls.step

    def step(self: Any, *args: Any, **options: Any) -> Any:
        result = original(self, *args, **options)
        # A step that the scaler has passed over has used its samples, too.
        if self.gradient_state.sync_gradients:
            rank_places.completed()
        return result

    cls.step = step


def checkpoints() -> None:
    """Complete accelerate's checkpoints, after the import of `accelerate.checkpointing`. [3] [4]"""
    require(POSITION_CHECKPOINTS)
    module: Any = sys.modules["accelerate.checkpointing"]
    save, load = module.save_accelerator_state, module.load_accelerator_state

    def save_accelerator_state(*args: Any, **options: Any) -> Any:
        given = _bound(save, args, options)
        with hugging_face_saves.marked(given["output_dir"], given["process_index"]):
            result = save(*args, **options)
            rank_places.write(given["output_dir"], given["dataloaders"])
        return result

    def load_accelerator_state(*args: Any, **options: Any) -> Any:
        given = _bound(load, args, options)
        hugging_face_saves.refuse_unfinished(given["input_dir"])
        result = load(*args, **options)
        rank_places.resume(given["input_dir"], given["dataloaders"])
        return result

    module.save_accelerator_state, module.load_accelerator_state = save_accelerator_state, load_accelerator_state


def _bound(function: Callable[..., Any], args: Any, options: Any) -> dict[str, Any]:
    return inspect.signature(function).bind(*args, **options).arguments
