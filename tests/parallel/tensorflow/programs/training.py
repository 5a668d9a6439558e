"""Five training steps of a small model, on a rank's part of the batch or on the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

STEPS, BATCH = 5, 24


def batches(parts: int, part: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS, BATCH, 8, 8, 3)).astype(np.float32)
    labels = rng.integers(0, 5, (STEPS, BATCH))
    share = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
    return images[:, share], labels[:, share]


def model(seed: int = 7) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(5),
        ]
    )


def loss_of(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))


def weights(net: keras.Model) -> Any:
    return np.concatenate([weight.numpy().ravel() for weight in net.weights])


def alone(mode: str) -> tuple[list[float], Any]:
    """Train on the whole batch, without the library."""
    net, (images, labels) = model(), batches(1, 0)
    if mode == "fit":
        net.compile(keras.optimizers.Adam(1e-3), loss_of_fit())
        return _fit(net, images, labels), weights(net)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(net(x, training=True), y)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
        )
        return loss

    run = tf.function(step) if mode == "graph" else step
    return [float(run(x, y)) for x, y in zip(images, labels, strict=True)], weights(net)


def together(mode: str, bucket_cap_mb: float | None = None) -> tuple[list[float], Any, int]:
    """Train on this rank's part; return the average losses, the weights, and the number of summed buffers."""
    sdp.init()
    before = buffers()
    net, (images, labels) = model(), batches(sdp.size(), sdp.rank())
    if mode == "fit":
        optimizer = sdp.DistributedOptimizer(keras.optimizers.Adam(1e-3), bucket_cap_mb=bucket_cap_mb)
        net.compile(optimizer, loss_of_fit())
        losses = [float(sdp.oob_allreduce(loss)) for loss in _fit(net, images, labels)]
        return losses, weights(net), buffers() - before
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(net(x, training=True), y)
        tape = sdp.DistributedGradientTape(tape)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
        )
        return sdp.oob_allreduce(loss)

    run = tf.function(step) if mode == "graph" else step
    return [float(run(x, y)) for x, y in zip(images, labels, strict=True)], weights(net), buffers() - before


def buffers() -> int:
    from herringbone_parallel.tensorflow.data_parallel import state

    return state.get().engine.stats().buffers


def loss_of_fit() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class _Losses(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(logs["loss"])


def _fit(net: keras.Model, images: Any, labels: Any) -> list[float]:
    """Train and return the losses; Keras reports each as the mean over its epoch so far."""
    seen = _Losses()
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    net.fit(data, verbose=0, shuffle=False, callbacks=[seen])
    return seen.seen
