"""Data, layers and losses that `fit` over several ranks refuses; each function returns the errors."""

from __future__ import annotations

from typing import Any

import fitting
import keras
import msgspec
import numpy as np
import pipelines
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from keras import layers
from pipeline_mistakes import error_of

from herringbone_parallel.tensorflow.model_parallel import state


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


def losses_of_batches() -> list[str]:
    """Fit with losses that are no mean over samples, and with one that is."""
    smp.init()
    model, inputs, labels = fitting._small([0, 1])
    messages = []
    losses = [_sum_of_squares, _distance_to_others, _SumOfErrors(name="sum_of_errors"), _hardest_of_other_classes]
    for loss in (
        *losses,
        _Called(name="called"),
        "tversky",
        keras.losses.Circle(),
        _mean_of_the_unmasked,
        keras.losses.Dice(axis=-1),
    ):
        model.compile("adam", loss)
        of_classes = loss is _mean_of_the_unmasked or isinstance(loss, keras.losses.Circle)
        targets = labels if of_classes else np.zeros((len(inputs), 3))
        messages.append(error_of(model.fit, inputs, targets, fitting.BATCH, 1, 0))
    return messages


def _sum_of_squares(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_sum(tf.square(y_true - y_pred))


def _distance_to_others(y_true: Any, y_pred: Any) -> Any:
    """Compare each sample with all others of the batch; each has a value."""
    return tf.reduce_logsumexp(tf.matmul(y_pred, y_pred, transpose_b=True), -1)


def _hardest_of_other_classes(y_true: Any, y_pred: Any) -> Any:
    """Compare each sample with those of other classes; samples of one class have no others."""
    classes = tf.cast(y_true[:, 0], tf.int32)
    others = tf.cast(tf.not_equal(classes[:, None], classes[None]), tf.float32)
    return tf.reduce_max(others * tf.matmul(y_pred, y_pred, transpose_b=True), -1)


def _mean_of_the_unmasked(y_true: Any, y_pred: Any) -> Any:
    mask = tf.cast(tf.reshape(y_true, [-1, 1]) > 0, tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(mask * tf.square(y_pred)), tf.reduce_sum(mask))


class _Called(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return tf.reduce_mean(tf.square(y_pred - tf.reduce_mean(y_pred, 0)))


class _SumOfErrors(keras.losses.MeanAbsoluteError):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.abs(y_true - y_pred))


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


def changing_its_kernel() -> list[str]:
    """Fit a layer that assigns to its kernel in its call: with two microbatches, and with one."""
    messages = []
    for microbatches in (2, 1):
        smp.init()
        rank_state = state.get()
        rank_state.settings = msgspec.structs.replace(rank_state.settings, microbatches=microbatches)
        model = smp.DistributedModel(keras.Sequential([layers.SpectralNormalization(layers.Dense(1))]))
        model.compile("sgd", "mse")
        messages.append(error_of(model.fit, np.ones((8, 3), np.float32), np.ones((8, 1), np.float32), 8))
        pipelines.another_job()
    return messages


def other_backend() -> str:
    """Start model parallelism where Keras runs on another framework."""
    backend, keras.config.backend = keras.config.backend, lambda: "jax"
    try:
        return error_of(smp.init)
    finally:
        keras.config.backend = backend


def _sum(hidden: Any, out: Any, kernel: Any) -> Any:
    return 0.1 * tf.reduce_sum(tf.square(hidden))


def _sum_by_the_batch(hidden: Any, out: Any, kernel: Any) -> Any:
    return tf.reduce_sum(tf.reduce_mean(tf.square(out), -1)) / 8


def _vector(hidden: Any, out: Any, kernel: Any) -> Any:
    return tf.reduce_sum(tf.abs(out), -1)


def _means(hidden: Any, out: Any, kernel: Any) -> Any:
    """Return a sum of terms that are means over samples, or of weights alone."""
    samples = tf.cast(tf.shape(out)[0], tf.float32)
    return (
        tf.reduce_mean(tf.reduce_sum(tf.square(out), -1))
        + tf.reduce_sum(tf.square(hidden)) / samples
        + tf.reduce_sum(tf.square(tf.reduce_mean(hidden, 0)))
        + 0.25 * tf.reduce_sum(tf.reduce_mean(tf.abs(out), -1))
        + tf.reduce_sum(tf.square(kernel))
        + tf.reduce_sum(tf.nn.relu(out)) / tf.reduce_sum(tf.cast(tf.greater(out, -9.0), tf.float32))
    )


def summed_terms() -> list[list[str]]:
    """Fit with each of the terms above, in `add_loss` and in `compute_loss`; a microbatch has 4 samples."""
    results = []
    for term in (_sum, _sum_by_the_batch, _vector, _means):
        errors = []
        for in_call in (True, False):
            smp.init()
            model = _net_with(term, in_call=in_call)
            inputs, labels, _ = fitting._data("dense")
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            errors.append(error_of(lambda model=model, x=inputs[:8], y=labels[:8]: model.fit(x, y, verbose=0)))
            pipelines.another_job()
        results.append(errors)
    return results


def _net_with(term: Any, *, in_call: bool) -> Any:
    class Net(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.Dense(6, activation="relu", activity_regularizer="l2")
            self.second = layers.Dense(3, kernel_regularizer="l2")

        def call(self, vectors: Any) -> Any:
            with smp.partition(0):
                self.hidden = self.first(vectors)
            with smp.partition(1):
                out = self.second(self.hidden)
                if in_call:
                    self.add_loss(term(self.hidden, out, self.second.kernel.value))
            return out

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, **others: Any) -> Any:
            loss = super().compute_loss(x=x, y=y, y_pred=y_pred, **others)
            own = 0.0 if in_call else term(self.hidden, y_pred, self.second.kernel.value)
            return loss + tf.reduce_sum(own) if term is _vector else loss + own

    return Net()
