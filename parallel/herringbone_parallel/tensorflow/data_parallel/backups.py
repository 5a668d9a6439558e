"""Keeps the files of Keras's `BackupAndRestore` apart, which every rank of a data-parallel job writes and reads."""

from __future__ import annotations

import functools
from typing import Any

import keras

from herringbone_parallel.tensorflow.patches import Patches


def keep_apart(rank: int, patches: Patches) -> None:
    """Give each rank but the first a folder of its own, `FOLDER-rank-1`; lasts until `patches` are undone."""
    before = keras.callbacks.BackupAndRestore.__init__

    # Ranks of one host would otherwise write one file at a time, and each continues from its own file.
    @functools.wraps(before)
    def made(callback: Any, backup_dir: Any, *args: Any, **kwargs: Any) -> None:
        before(callback, f"{backup_dir}-rank-{rank}" if backup_dir and rank else backup_dir, *args, **kwargs)

    patches.set(keras.callbacks.BackupAndRestore, "__init__", made)
