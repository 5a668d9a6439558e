"""Steps whose traces and received tensors are counted."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_parallel.tensorflow.model_parallel import state

STEPS = 3


def train(fails: bool, width: int = 6) -> Any:
    """Train two layers on two ranks; return the number of traces, and of received tensors.

    With `fails`, the last step fails.
    """
    smp.init()
    layers = []
    for partition in range(2):
        with smp.partition(partition):
            layers.append(keras.layers.Dense(width))
    model = smp.DistributedModel(keras.Sequential(layers))
    traced = []

    @smp.step
    def gradients_of(inputs: Any) -> Any:
        traced.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs)))
        loss = tf.debugging.check_numerics(loss, "boom")
        return tape.gradient(loss, model.trainable_variables), loss

    @tf.function
    def step(inputs: Any) -> Any:
        gradients, loss = gradients_of(inputs)
        return [gradient.accumulate() for gradient in gradients], loss.reduce_mean()

    transport = state.get().transport
    assert transport is not None
    for number in range(STEPS):
        step(tf.fill((8, width), np.inf if fails and number == STEPS - 1 else 1.0))
    smp.shutdown()
    return len(traced), transport.arrived
