"""The ranks of a data-parallel job, as `common.loop` asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import keras
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf


@dataclass(frozen=True)
class World:
    """Which of how many ranks this is."""

    rank: int
    ranks: int

    def total(self, value: float) -> float:
        """Return the sum of a value over the ranks."""
        return float(sdp.oob_allreduce(tf.constant(value, tf.float64), op=sdp.ReduceOp.SUM))


def join() -> World:
    """Meet the other ranks; each has its own GPU, where there are any."""
    sdp.init()
    if devices := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(devices[sdp.local_rank()], "GPU")
    return World(sdp.rank(), sdp.size())


def leave() -> None:
    """Part from the other ranks."""
    sdp.shutdown()


def save(model: keras.Model, folder: Path) -> None:
    """Write the model where the job keeps it; `keras.models.load_model(path, compile=False)` reads it anywhere."""
    model.save(folder / "model.keras")
