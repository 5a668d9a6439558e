"""The stop of Lightning's Trainer, on stand-ins of its loops and of its callback that saves."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from herringbone_contract.events import stops
from herringbone_parallel.torch.position import lightning_stops


class Saver:
    monitor, save_top_k, save_last = None, -1, True

    def __init__(self, last):
        self._last_global_step_saved, self.saved = last, []

    def _monitor_candidates(self, trainer):
        return trainer

    def _save_none_monitor_checkpoint(self, trainer, _candidates):
        self.saved.append((trainer.global_step, trainer.validated))
        self._last_global_step_saved = trainer.global_step

    def _save_last_checkpoint(self, trainer, _candidates):
        pass


class Loop:
    """Validates behind a step, where `validates`."""

    batch_progress = SimpleNamespace(is_last_batch=False)

    def __init__(self, saver, *, validates):
        self.validates = validates
        connector = SimpleNamespace(_original_handlers={})
        self.trainer = SimpleNamespace(
            checkpoint_callbacks=[saver],
            fast_dev_run=False,
            global_step=8,
            validated=False,
            _signal_connector=connector,
        )

    def _should_accumulate(self):
        return False

    def _should_check_val_fx(self, _fetcher):
        return self.validates

    def on_advance_end(self, _fetcher):
        self.trainer.validated = self.validates


@pytest.mark.parametrize(
    ("last", "validates", "saved"),
    [
        (6, False, [(8, False)]),
        (6, True, [(8, True)]),
        # The checkpoint of this step lacks nothing.
        (8, False, []),
        # Lightning would leave the validation out that came behind it.
        (8, True, [(8, True)]),
    ],
)
def test_a_stop_saves_unless_this_step_is_saved_with_its_validation(monkeypatch, last, validates, saved):
    loops = SimpleNamespace(_TrainingEpochLoop=type("Epoch", (Loop,), {"on_advance_end": Loop.on_advance_end}))
    fit = SimpleNamespace(_FitLoop=type("Fit", (), {"on_run_end": lambda _: None}))
    for name, module in (("", ModuleType("l")), (".training_epoch_loop", loops), (".fit_loop", fit)):
        monkeypatch.setitem(sys.modules, f"a_lightning.loops{name}", module)
    monkeypatch.setitem(sys.modules, "a_lightning", ModuleType("a_lightning"))
    monkeypatch.setattr(stops, "should_stop", lambda: True)
    monkeypatch.setattr(stops, "asks_for_script", lambda: True)
    lightning_stops.watch("a_lightning")
    saver = Saver(last)
    with pytest.raises(SystemExit):
        loops._TrainingEpochLoop(saver, validates=validates).on_advance_end(None)
    assert saver.saved == saved
