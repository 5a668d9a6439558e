"""BatchNormalization on many ranks: its momentum for larger steps, and equal moving statistics on all ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.large_batch import scale_batch_norm_momentum
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.gradients import ReduceOp
from herringbone_parallel.tensorflow.data_parallel.operations import oob_allreduce

_REFUSED = {
    "renorm": "has statistics of another kind, which are not handled here",
    "synchronized": "is for tf.distribute, and would normalize with each rank's own batch all the same",
}


def tune_batch_norm(model: keras.Model, *, batch: int, base_batch: int) -> None:
    """Give the model's BatchNormalization layers the momentum that fits fewer, larger steps.

        tune_batch_norm(model, batch=rank_batch * ranks, base_batch=256)

    `batch`, `base_batch`: the number of examples, of all ranks, between two updates of a rank's moving statistics. A
    layer updates them in every forward pass, also where several forward passes make one step. Call it before the first
    step, because a traced step keeps the momentum of its trace.
    """
    for layer in _layers(model):
        # Keras's momentum is the weight of the past, torch's (and the formula's) that of the newest batch.
        layer.momentum = 1 - scale_batch_norm_momentum(1 - layer.momentum, batch=batch, base_batch=base_batch)


def average_batch_norm(model: keras.Model) -> None:
    """Give all ranks the moving statistics over the examples of all ranks, with one sum for the whole model.

        average_batch_norm(model)           # every rank, before it evaluates or saves
        model.evaluate(...)

    A mean becomes the average of the ranks' means. A variance becomes that of the examples of all ranks together, with
    the same weight for each rank. A single process returns at once. Raises `ParallelError` when the ranks' models
    differ, and for layers with `renorm=True` or `synchronized=True`.
    """
    if not state.is_initialized() or state.size() == 1:
        return
    layers = _layers(model)
    if not layers:
        return
    means = [np.asarray(layer.moving_mean, np.float64) for layer in layers]
    # In double precision: the variance below is a difference of squares, which loses digits.
    variances = [np.asarray(layer.moving_variance, np.float64) for layer in layers]
    squares = [variance + mean**2 for variance, mean in zip(variances, means, strict=True)]
    statistics = np.concatenate([*means, *squares])
    # A sum of arrays of different sizes would fail in words that name no model.
    _require_one_size(statistics.size)
    averages = oob_allreduce(statistics).numpy()
    ends = np.cumsum([part.size for part in (*means, *squares)])[:-1]
    parts = np.split(averages, ends)
    for layer, mean, square in zip(layers, parts[: len(layers)], parts[len(layers) :], strict=True):
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(square - mean**2)


def _layers(model: keras.Model) -> list[Any]:
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in layers:
        for setting in ("renorm", "synchronized"):
            if getattr(layer, setting, False):
                raise ParallelError(
                    f"{layer.path}: BatchNormalization({setting}=True) {_REFUSED[setting]}; leave it out"
                )
    return layers


def _require_one_size(size: int) -> None:
    # The largest of the negated sizes is the smallest size: one call instead of two.
    sizes = tf.constant([size, -size])
    most, least = (int(bound) for bound in oob_allreduce(sizes, op=ReduceOp.MAX).numpy() * (1, -1))
    if most != least:
        raise ParallelError(
            f"average_batch_norm: the ranks' models differ: {least} to {most} moving statistics, {size} of them here;"
            " build the same model on every rank"
        )
