"""Let a checkpoint of Hugging Face's Trainer, or of accelerate's `save_state`, be complete, or count as none.

    checkpoint-40/
      herringbone.unfinished    [1] is there before all other files, and is removed after all are on the disk
      ...                       [2] what transformers writes, and removes of older checkpoints after [1] is gone

Each rank that calls `save_state` has a mark of its own, because scripts may call it on one rank alone.

transformers takes the folder with the highest number, and writes its files in place: after a kill in a save, each
restart fails. `get_last_checkpoint` passes over a folder with [1].
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_contract.files import sync, write_whole
from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.hugging_face_hooks import POSITION_LOOKUPS
from herringbone_parallel.torch.position.rank_places import notice

_MARK = "herringbone.unfinished"


def complete(module: Any) -> None:
    """Change `Trainer._save_checkpoint`, after the import of `transformers.trainer`."""
    trainer = module.Trainer
    save = trainer._save_checkpoint
    # transformers 4.57 has a method.
    is_method = hasattr(trainer, "_rotate_checkpoints")
    name, owner = ("_rotate_checkpoints", trainer) if is_method else ("rotate_checkpoints", module)
    rotate, waiting = getattr(owner, name), _Waiting()

    def _save_checkpoint(self: Any, model: Any, trial: Any = None, **options: Any) -> None:
        runs = Path(self._get_output_dir(trial=trial))
        folder = runs / f"checkpoint-{self.state.global_step}"
        is_writer = self.args.should_save
        waiting.calls = []
        with marked(folder) if is_writer else nullcontext():
            try:
                save(self, model, trial, **options)
            finally:
                calls, waiting.calls = waiting.calls, None
            if dist.is_available() and dist.is_initialized():
                # All ranks: for accelerate, those of one pipeline are one.
                dist.barrier()
        if is_writer and self.args.save_total_limit:
            for mark in runs.glob(f"checkpoint-*/{_MARK}"):
                shutil.rmtree(mark.parent, ignore_errors=True)
        for call in calls:
            call()

    def rotated(*args: Any, **options: Any) -> None:
        call = partial(rotate, *args, **options)
        call() if waiting.calls is None else waiting.calls.append(call)

    trainer._save_checkpoint = _save_checkpoint
    setattr(owner, name, rotated)


class _Waiting:
    """The removals of older checkpoints that wait for the end of a save; None outside of one."""

    calls: list[Callable[[], None]] | None = None


def lookups() -> None:
    """Let transformers find complete checkpoints, after the import of `transformers.trainer_utils`."""
    require(POSITION_LOOKUPS)
    module: Any = sys.modules["transformers.trainer_utils"]
    original = module.get_last_checkpoint

    def get_last_checkpoint(folder: str) -> str | None:
        unfinished = {mark.parent.name for mark in Path(folder).glob(f"*/{_MARK}")}
        if not unfinished:
            return original(folder)  # type: ignore[no-any-return]
        notice(f"{', '.join(sorted(unfinished))} in {folder} is unfinished, because its save was cut: passed over")
        numbers = {
            path: int(path.name.rpartition("-")[2])
            for path in Path(folder).glob("checkpoint-*")
            if path.is_dir() and path.name not in unfinished and path.name.rpartition("-")[2].isdigit()
        }
        return str(max(numbers, key=numbers.__getitem__)) if numbers else None

    module.get_last_checkpoint = get_last_checkpoint


@contextmanager
def marked(folder: str | os.PathLike[str], rank: int | None = None) -> Iterator[None]:
    """Mark a checkpoint as unfinished while the files in it are written; the mark stays where that fails. [1]"""
    mark = Path(folder, _MARK if rank is None else f"herringbone-{rank}.unfinished")
    mark.parent.mkdir(parents=True, exist_ok=True)
    write_whole(mark, b"", mode=0o666, synced=True)
    # Of a mounted folder, others may own the one above.
    with suppress(PermissionError):
        sync(mark.parent.parent)
    yield
    sync_tree(mark.parent)
    mark.unlink()
    sync(mark.parent)


def refuse_unfinished(folder: str) -> None:
    """Raise `ParallelError` for a checkpoint whose save was cut."""
    if any(Path(folder).glob("herringbone*.unfinished")):
        raise ParallelError(
            f"the checkpoint {folder} is unfinished, because its save was cut: name an earlier one, as Trainer's"
            " resume_from_checkpoint=True does, and remove this folder"
        )


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Return once a folder and all that is in it are on the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            # Other ranks may still rename theirs.
            with suppress(FileNotFoundError):
                sync(os.path.join(path, name))  # noqa: PTH118 - thousands of files
        sync(path)
