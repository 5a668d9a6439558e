"""Mistakes of users, and failures of ranks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf


def _model(units: int, seed: int = 7, dtype: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, name="wide", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    )


def _step(model: keras.Model, optimizer: Any, **options: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(np.ones((2, 4), np.float32)))
    tape = sdp.DistributedGradientTape(tape, **options)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )


def other_model_on_rank_1() -> None:
    sdp.init()
    _step(_model(8 + sdp.rank()), keras.optimizers.SGD())


def other_type_on_rank_1() -> None:
    sdp.init()
    _step(_model(8, dtype="float64" if sdp.rank() else "float32"), keras.optimizers.SGD())


def no_broadcast() -> None:
    sdp.init()
    model, optimizer = _model(8, seed=sdp.rank()), keras.optimizers.SGD()
    _step(model, optimizer)
    tf.function(lambda: None)()
    _step(model, optimizer)


def no_broadcast_in_fit() -> None:
    sdp.init()
    model = _model(8, seed=sdp.rank())
    model.compile(sdp.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=4, verbose=0)


def other_rate_on_rank_1() -> None:
    """Lower the learning rate on one rank, as a plateau of its own loss does."""
    sdp.init()
    model, optimizer = _model(8), keras.optimizers.SGD(0.1)
    for step in range(8):
        if step == 4 and sdp.rank():
            optimizer.learning_rate = 0.01
        _step(model, optimizer)


def other_rate_of_a_table_on_rank_1() -> None:
    """As `other_rate_on_rank_1`, for a model whose only gradient is sparse, in a function."""
    sdp.init()
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function
    def step(rate: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 2]))
        [gradient] = sdp.DistributedGradientTape(tape).gradient(loss, [table])
        table.scatter_sub(tf.IndexedSlices(gradient.values * rate, gradient.indices))

    for number in range(8):
        step(tf.constant(0.01 if number > 3 and sdp.rank() else 0.1))


def broadcast_after_the_first_step() -> list[float]:
    sdp.init()
    model, optimizer = _model(8, seed=sdp.rank()), keras.optimizers.SGD(0.1)
    _step(model, optimizer)
    sdp.broadcast_variables(model.variables, root_rank=0)
    sdp.broadcast_variables(optimizer.variables, root_rank=0)
    _step(model, optimizer)
    return [float(tf.reduce_sum(variable)) for variable in model.variables]


def decay_without_a_gradient() -> float:
    """Let the weight decay run before the sum of gradients on one rank, and after it on the other."""
    sdp.init()
    weight = tf.Variable([8.0])

    def late(value: Any, *, rank: int) -> tf.Tensor:
        def wait(array: Any) -> Any:
            time.sleep(0.3 if sdp.rank() == rank else 0.0)
            return array

        return tf.ensure_shape(tf.numpy_function(wait, [value], tf.float32, stateful=False), [1])

    @tf.function
    def step(one: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = weight * late(one, rank=1)
        [average] = sdp.DistributedGradientTape(tape).gradient(loss, [weight])
        weight.assign(weight * late(one / 2, rank=0))
        weight.assign_sub(average)

    for _ in range(3):
        step(tf.constant([1.0]))
    return float(weight[0])


def compiled_by_xla() -> tuple[float, str]:
    """Compile the part of a step that computes gradients, and then a whole step, which is refused."""
    sdp.init()
    weight = tf.Variable([2.0])

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        return tape.gradient(loss, [weight])

    @tf.function
    def step() -> Any:
        inner = tf.function(gradients, jit_compile=True)()
        return [sdp.allreduce(gradient, number, 1) for number, gradient in enumerate(inner)]

    value = float(step()[0][0])
    model = _model(8)
    model.compile(sdp.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=True)
    try:
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    except Exception as error:  # noqa: BLE001
        return value, str(error)
    return value, ""


def refused() -> list[str]:
    """Return the errors of calls that fail before any message to another rank."""
    sdp.init()
    messages = []
    for wrong in (
        lambda: sdp.DistributedOptimizer("adam"),
        lambda: sdp.DistributedOptimizer(sdp.DistributedOptimizer(keras.optimizers.SGD())),
        lambda: sdp.DistributedOptimizer(keras.optimizers.SGD(), bucket_cap_mb=-1),
        lambda: sdp.DistributedOptimizer(keras.optimizers.SGD(), use_locking=True),
        lambda: sdp.DistributedGradientTape(tf.GradientTape(), device_dense="/gpu:0"),
        lambda: sdp.DistributedGradientTape(tf.GradientTape(), op=sdp.ReduceOp.MAX),
        lambda: sdp.allreduce(tf.ones(2), 2, 2),
        lambda: sdp.oob_allreduce(tf.ones(2, tf.int32)),
        lambda: sdp.broadcast_global_variables(0),
        lambda: sdp.broadcast(tf.ones(2), 2),
    ):
        try:
            wrong()
        except Exception as error:  # noqa: BLE001
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def rank_1_dies() -> tuple[str, float]:
    """Train until rank 1 is killed; return the error on rank 0, and the seconds until then."""
    sdp.init()
    weight = tf.Variable(tf.zeros([1000]))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        weight.assign_sub(sdp.DistributedGradientTape(tape).gradient(loss, weight))

    for _ in range(3):
        step()
    if sdp.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        for _ in range(1_000_000):
            step()
    except Exception as error:  # noqa: BLE001
        return str(error), time.monotonic() - began
    return "", 0.0
