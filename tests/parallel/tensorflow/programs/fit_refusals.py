"""Data, layers and losses that `fit` over several ranks refuses; each function returns the errors."""

from __future__ import annotations

from typing import Any

import fitting
import keras
import numpy as np
import pipelines
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from keras import layers
from pipeline_mistakes import error_of


def no_step_for_the_data() -> list[str]:
    """Fit on sparse and on ragged batches, and with a layer whose own iterator ends."""
    smp.init()
    model, inputs, labels = fitting._small([0, 1])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dense = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(4)
    ragged = dense.map(lambda x, y: (tf.RaggedTensor.from_tensor(x), y))
    sparse = dense.map(lambda x, y: (tf.sparse.from_dense(x), y))
    messages = [error_of(lambda data=data: model.fit(data, verbose=0)) for data in (sparse, ragged)]
    messages.append(error_of(lambda: model.predict(sparse, verbose=0)))
    for error in (StopIteration(), tf.errors.OutOfRangeError(None, None, "the end")):
        pipelines.another_job()
        smp.init()
        model, inputs, labels = fitting._small([0, 1])
        model.compile("sgd", _ending(error))
        messages.append(error_of(model.fit, inputs[:8], labels[:8]))
    return messages


def _ending(error: Exception) -> Any:
    def loss(y_true: Any, y_pred: Any) -> Any:
        # On samples of its own, the library tries whether the loss is a mean.
        if hasattr(y_pred, "numpy"):
            return tf.reduce_mean(y_pred, -1)
        raise error

    return loss


def stateful() -> list[str]:
    """Fit a layer that keeps a state for each sample of a batch: with two microbatches, and in another layer."""
    messages = []
    for wrap in (lambda layer: layer, layers.Bidirectional):
        smp.init()
        net = keras.Sequential([keras.Input(batch_shape=(8, 3, 2)), wrap(layers.SimpleRNN(4, stateful=True))])
        model = smp.DistributedModel(net)
        model.compile("sgd", "mse")
        inputs, labels = np.ones((8, 3, 2), np.float32), np.ones((8, 1), np.float32)
        messages.append(error_of(model.fit, inputs, labels, 8))
        pipelines.another_job()
    return messages


def other_backend() -> str:
    """Start model parallelism where Keras runs on another framework."""
    backend, keras.config.backend = keras.config.backend, lambda: "jax"
    try:
        return error_of(smp.init)
    finally:
        keras.config.backend = backend
