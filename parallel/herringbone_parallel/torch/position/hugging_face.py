"""Let Hugging Face's Trainer go on in the middle of an epoch; the script stays as it is.

    _save_rng_state                  [1] also writes the rank's place and all its random numbers
    _load_optimizer_and_scheduler    [2] the training loader goes on from there; `accelerate` has its part
    _load_rng_state                  [3] the loader restores the numbers, at the first batch that it reads

Read in transformers 4.57 and 5.23.
"""

from __future__ import annotations

import sys
from typing import Any

from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.hugging_face_hooks import POSITION_TRAINER
from herringbone_parallel.torch.position import rank_places
from herringbone_parallel.torch.position.accelerate import resume


def complete() -> None:
    """Change `Trainer` once, after the import of `transformers.trainer`."""
    require(POSITION_TRAINER)
    trainer: Any = sys.modules["transformers.trainer"].Trainer
    save, load, load_numbers = (
        trainer._save_rng_state,
        trainer._load_optimizer_and_scheduler,
        trainer._load_rng_state,
    )

    # [1]
    def _save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        rank_places.write(output_dir, self.args.process_index, self.args.world_size, self.accelerator._dataloaders)

    # [2]
    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        self._herringbone_resumed = (
            checkpoint is not None
            and not self.args.ignore_data_skip
            and resume(checkpoint, self.args.process_index, self.accelerator._dataloaders)
        )

    # [3]
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        if not getattr(self, "_herringbone_resumed", False):
            load_numbers(self, checkpoint)

    trainer._save_rng_state, trainer._load_rng_state = _save_rng_state, _load_rng_state
    trainer._load_optimizer_and_scheduler = _load_optimizer_and_scheduler
