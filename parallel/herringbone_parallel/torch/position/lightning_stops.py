"""Let Lightning's Trainer save and end when its job is asked to go; the script stays as it is.

    _TrainingEpochLoop.on_advance_end    behind a step, and its validation: ask, save by the script's ModelCheckpoint
    _FitLoop.on_run_end                  ask no more

Lightning handles SIGTERM itself, by an error that saves nothing, so its handler is taken back where the script has none
of its own. Without a ModelCheckpoint nothing is asked. Read in Lightning 2.5 and 2.6.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from herringbone_contract.events import stops


def watch(package: str) -> None:
    """Change Lightning, a package of this name, after the import of its `trainer.trainer`."""
    loops: Any = __import__(f"{package}.loops.training_epoch_loop", fromlist=["_TrainingEpochLoop"])
    fit: Any = __import__(f"{package}.loops.fit_loop", fromlist=["_FitLoop"])._FitLoop
    loop = loops._TrainingEpochLoop
    end, end_run = loop.on_advance_end, fit.on_run_end

    def on_advance_end(self: Any, fetcher: Any) -> None:
        trainer = self.trainer
        # A callback of the script's own may be a checkpoint callback, and have no such method.
        saver = next((one for one in trainer.checkpoint_callbacks if hasattr(one, "_save_last_checkpoint")), None)
        # Lightning leaves a validation out that follows the save at which it goes on, with the random numbers of it.
        is_early = saver is not None and _is_saved(trainer, saver) and self._should_check_val_fx(fetcher)
        end(self, fetcher)
        # Gradients that wait for a step are in no checkpoint, and the end of an epoch is not over yet.
        is_between = self._should_accumulate() or self.batch_progress.is_last_batch
        if saver is None or is_between or trainer.fast_dev_run:
            return
        _take_back(trainer)
        if stops.asks_for_script() and stops.should_stop():
            if is_early or not _is_saved(trainer, saver):
                _save(trainer, saver)
            raise SystemExit(0)

    def on_run_end(self: Any) -> None:
        stops.no_more()
        end_run(self)

    loop.on_advance_end, fit.on_run_end = on_advance_end, on_run_end


def _take_back(trainer: Any) -> None:
    before = trainer._signal_connector._original_handlers.get(signal.SIGTERM, signal.SIG_IGN)
    is_lightnings = type(signal.getsignal(signal.SIGTERM)).__name__ == "_HandlersCompose"
    if is_lightnings and before in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_saved(trainer: Any, saver: Any) -> bool:
    return bool(saver._last_global_step_saved == trainer.global_step)


def _save(trainer: Any, saver: Any) -> None:
    """Save as the callback does after some steps; one that only keeps the best gets a `last.ckpt`."""
    candidates = saver._monitor_candidates(trainer)
    if saver.monitor is None and saver.save_top_k:
        saver._save_none_monitor_checkpoint(trainer, candidates)
    if saver.save_last:
        saver._save_last_checkpoint(trainer, candidates)
    elif saver.monitor is not None or not saver.save_top_k:
        trainer.save_checkpoint(str(Path(saver.dirpath, f"{saver.CHECKPOINT_NAME_LAST}{saver.FILE_EXTENSION}")))
