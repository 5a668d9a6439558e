"""Four backward passes for two steps, by the job's settings; and the same two steps on batches of twice the size."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
import training

PASSES = 4


def _batches(size: int, rank: int, at_once: int) -> list[tuple[Any, Any]]:
    """Return this rank's part of each batch, or of `at_once` batches joined."""
    images, labels = training.batches(size, rank)
    return [
        (np.concatenate(images[first : first + at_once]), np.concatenate(labels[first : first + at_once]))
        for first in range(0, PASSES, at_once)
    ]


def alone() -> Any:
    """Train two steps in one process, each on two batches at once."""
    return _train(training.model(), keras.optimizers.SGD(0.05, momentum=0.9), _batches(1, 0, 2), tf.GradientTape)


def with_tape(in_graph: bool, rate: float) -> tuple[Any, int]:
    sdp.init()
    before = sent_bytes()
    tape = lambda: sdp.DistributedGradientTape(tf.GradientTape())  # noqa: E731
    data = _batches(sdp.size(), sdp.rank(), 1)
    weights = _train(training.model(), keras.optimizers.SGD(rate, momentum=0.9), data, tape, in_graph=in_graph)
    return weights, sent_bytes() - before


def with_optimizer(rate: float) -> tuple[Any, int]:
    sdp.init()
    before = sent_bytes()
    net = training.model()
    net.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)), training.loss_of_fit())
    for images, labels in _batches(sdp.size(), sdp.rank(), 1):
        net.train_on_batch(images, labels)
    return training.weights(net), sent_bytes() - before


def with_horovod(average: bool) -> Any:
    import horovod.tensorflow.keras as hvd

    hvd.init()
    net = training.model()
    rate = 0.1 if average else 0.05  # half the rate where gradients are added up: a sum is twice the average
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    net.compile(optimizer, training.loss_of_fit())
    for images, labels in _batches(hvd.size(), hvd.rank(), 1):
        net.train_on_batch(images, labels)
    return training.weights(net)


def sent_bytes() -> int:
    from herringbone_parallel.tensorflow.data_parallel import state

    # This rank has its sums when some that it returns may still be unsent. After one more sum the others have theirs.
    sdp.oob_allreduce(tf.constant(0.0))
    return state.get().engine.stats().sent_bytes


def _train(net: keras.Model, optimizer: Any, data: Any, open_tape: Any, in_graph: bool = True) -> Any:
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with open_tape() as tape:
            loss = training.loss_of(net(images, training=True), labels)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    run = tf.function(step) if in_graph else step
    for images, labels in data:
        run(images, labels)
    return training.weights(net)
