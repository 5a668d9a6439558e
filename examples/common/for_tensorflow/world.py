"""The ranks of a data-parallel job in TensorFlow, or a single process: implements `common.loop.Framework`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

# Keras keeps the weights in fp32 under both mixed policies.
_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@dataclass(frozen=True)
class World:
    """This rank's number, and the number of ranks."""

    rank: int
    ranks: int

    @property
    def is_launched(self) -> bool:
        """True for a rank of a job, also for a job's only rank. False for a process without a launcher."""
        return sdp.is_initialized()

    def total(self, *values: Any) -> list[float]:
        """Return the sum of each value over the ranks."""
        totals = np.array([float(value) for value in values])
        if self.is_launched:
            totals = sdp.oob_allreduce(tf.constant(totals), op=sdp.ReduceOp.SUM).numpy()
        return totals.tolist()

    def gather(self, text: str) -> list[str]:
        """Return all ranks' lines of text, on every rank."""
        if not self.is_launched:
            return [text]
        lines = []
        for root in range(self.ranks):
            # Receivers need an array of the sender's length.
            line = np.frombuffer(text.encode(), np.uint8) if root == self.rank else np.zeros(0, np.uint8)
            length = int(sdp.broadcast(tf.constant(len(line), tf.int64), root_rank=root))
            content = line if root == self.rank else np.zeros(length, np.uint8)
            lines.append(sdp.broadcast(tf.constant(content), root_rank=root).numpy().tobytes().decode())
        return lines

    def set_precision(self, precision: str, *, double: bool = False) -> None:
        """Choose the type in which layers compute; with `double`, they compute in fp64.

        Raises `ValueError` for fp16 on CPUs, which emulate or lack it, and for `double` with 16 bits.
        """
        if precision == "fp16" and not tf.config.list_physical_devices("GPU"):
            raise ValueError("--precision fp16 needs a GPU, because CPUs emulate fp16 or lack it; use bf16 or fp32")
        if double and precision != "fp32":
            raise ValueError(f"--double true computes in fp64, --precision {precision} in 16 bits: leave one out")
        keras.config.set_dtype_policy("float64" if double else _POLICIES[precision])


def join() -> World:
    """Join the other ranks, if a launcher started this process. Each rank uses one GPU, if the host has GPUs."""
    if "RANK" not in os.environ:
        return World(0, 1)
    sdp.init()
    if devices := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(devices[sdp.local_rank()], "GPU")
    return World(sdp.rank(), sdp.size())


def leave() -> None:
    """End the communication with the other ranks."""
    if sdp.is_initialized():
        sdp.shutdown()


def save(model: keras.Model, folder: Path) -> None:
    """Write the model to `model.keras`, which `keras.models.load_model(path, compile=False)` reads.

    Of a model with a class of its own, write the weights to `model.weights.h5`, which `model.load_weights` reads.
    """
    if type(model).__module__.startswith("keras."):
        model.save(folder / "model.keras")
    else:
        model.save_weights(folder / "model.weights.h5")
