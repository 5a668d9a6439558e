"""The ranks of a data-parallel job in TensorFlow: implements `common.loop.Framework`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import keras
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf


@dataclass(frozen=True)
class World:
    """This rank's number, and the number of ranks."""

    rank: int
    ranks: int

    def total(self, value: float) -> float:
        """Return the sum of a value over the ranks."""
        return float(sdp.oob_allreduce(tf.constant(value, tf.float64), op=sdp.ReduceOp.SUM))


def join() -> World:
    """Join the other ranks. Each rank uses one GPU, if the host has GPUs."""
    sdp.init()
    if devices := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(devices[sdp.local_rank()], "GPU")
    return World(sdp.rank(), sdp.size())


def leave() -> None:
    """End the communication with the other ranks."""
    sdp.shutdown()


def save(model: keras.Model, folder: Path) -> None:
    """Write the model to `model.keras`, which `keras.models.load_model(path, compile=False)` reads."""
    model.save(folder / "model.keras")
