"""BatchNormalization on many ranks: how long its moving statistics remember, and the same ones on all ranks."""

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

    Both are the examples, of all ranks, between two updates of a rank's moving statistics. A layer updates them in
    every forward, also where several forwards make one step. Call it before the first step: a traced one keeps what it
    saw.
    """
    for layer in _layers(model):
        # Keras's momentum is the weight of what was, torch's that of the newest batch.
        layer.momentum = 1 - scale_batch_norm_momentum(1 - layer.momentum, batch=batch, base_batch=base_batch)


def average_batch_norm(model: keras.Model) -> None:
    """Give all ranks the moving statistics of what all of them have seen: one sum for the whole model.

        average_batch_norm(model)           # every rank, before it evaluates or saves
        model.evaluate(...)

    Means are averaged; a variance is that of the ranks' examples together, each rank's counting the same. One process
    alone has nothing to do. Raises `ParallelError` where the ranks' models differ, and for layers with `renorm=True` or
    `synchronized=True`.
    """
    if not state.is_initialized() or state.size() == 1:
        return
    layers = _layers(model)
    if not layers:
        return
    means = [np.asarray(layer.moving_mean, np.float64) for layer in layers]
    # In double precision: a variance is a difference of squares here.
    variances = [np.asarray(layer.moving_variance, np.float64) for layer in layers]
    squares = [variance + mean**2 for variance, mean in zip(variances, means, strict=True)]
    together = np.concatenate([*means, *squares])
    _require_one_size(together.size)
    averages = oob_allreduce(together).numpy()
    ends = np.cumsum([each.size for each in (*means, *squares)])[:-1]
    parts = np.split(averages, ends)
    for layer, mean, square in zip(layers, parts[: len(layers)], parts[len(layers) :], strict=True):
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(square - mean**2)


def _layers(model: keras.Model) -> list[Any]:
    found = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in found:
        for setting in ("renorm", "synchronized"):
            if getattr(layer, setting, False):
                raise ParallelError(
                    f"{layer.path}: BatchNormalization({setting}=True) {_REFUSED[setting]}; leave it out"
                )
    return found


def _require_one_size(size: int) -> None:
    sizes = tf.constant([size, -size])
    most, least = (int(each) for each in oob_allreduce(sizes, op=ReduceOp.MAX).numpy() * (1, -1))
    if most != least:
        raise ParallelError(
            f"average_batch_norm: the ranks' models differ: {least} to {most} moving statistics, {size} of them here;"
            " build the same model on every rank"
        )
