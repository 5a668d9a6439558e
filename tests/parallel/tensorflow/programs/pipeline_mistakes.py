"""Calls that model parallelism refuses, and ranks that fail or die; each function returns the error messages."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import keras
import models
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from keras import layers


def error_of(function: Callable[..., Any], *args: Any) -> str:
    """Call a function; return the type and message of its exception, or "nothing"."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  the test compares it
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _assigned_in_a_loop(variable: Any) -> Any:
    def body(number: Any) -> Any:
        variable.assign(2.0 * variable)
        return (number + 1,)

    return tf.while_loop(lambda number: number < 2, body, [0])[0]


def refused() -> list[str]:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    vectors = np.zeros((6, 6), np.float32)

    @smp.step
    def step(inputs: Any) -> Any:
        return model(inputs)

    @smp.step
    def outer(inputs: Any) -> Any:
        return step(inputs)

    @smp.step
    def talking(inputs: Any) -> Any:
        smp.barrier()
        return inputs

    optimizer = keras.optimizers.SGD(0.1)

    @smp.step
    def updating(inputs: Any) -> Any:
        loss = tf.reduce_mean(model(inputs))
        gradients = tf.gradients(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @smp.step
    def assigning(inputs: Any) -> Any:
        loss = tf.reduce_mean(model(inputs))
        variable = model.trainable_variables[0]
        variable.assign_sub(tf.gradients(loss, [variable.value])[0])
        return loss

    @smp.step
    def assigning_in_branches(inputs: Any) -> Any:
        loss = tf.reduce_mean(model(inputs))
        variable = model.trainable_variables[0].value
        return loss, tf.cond(loss > 0.0, lambda: _assigned_in_a_loop(variable), lambda: 0)

    messages = [
        error_of(model, vectors),
        error_of(step, vectors[:5]),
        error_of(outer, vectors),
        error_of(talking, vectors),
        error_of(updating, vectors),
        error_of(assigning, vectors),
        error_of(assigning_in_branches, vectors),
    ]
    messages.append(error_of(lambda: smp.step(jit_compile=True)(step)))
    messages.append(error_of(lambda: smp.step(inline=True)(step)))
    messages.append(error_of(lambda: smp.step(non_split_inputs=["label"])(step)))
    messages.append(error_of(lambda: smp.partition(2).__enter__()))
    messages.append(error_of(smp.DistributedModel, keras.Sequential()))
    messages.append(error_of(smp.send, 1, smp.rank(), smp.RankType.WORLD_RANK))
    messages.append(error_of(smp.StepOutput([tf.ones(1)]).accumulate, "sum"))
    return messages


def cut_in_a_loop() -> str:
    smp.init()

    class Loop(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(6), layers.Dense(6)
            self.first.build((None, 6))
            self.second.build((None, 6))

        def call(self, vectors: Any) -> Any:
            with smp.partition(0):
                vectors = self.first(vectors)
            with smp.partition(1):
                vectors = self.second(vectors)
            return tf.while_loop(
                lambda count, _: count < 3,
                lambda count, hidden: (count + 1, self.second(self.first(hidden))),
                (0, vectors),
            )[1]

    model = Loop()
    step = smp.step(lambda inputs: model(inputs))
    return error_of(step, np.zeros((4, 6), np.float32))


def half_precision() -> list[str]:
    smp.init()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = models.CASES["dense"].distributed([0, 1])
        fixed = keras.optimizers.SGD(0.1, loss_scale_factor=128.0)
        dynamic = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))

        def step(inputs: Any, optimizer: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.cast(model(inputs), tf.float32))
                loss = loss if optimizer is None else optimizer.scale_loss(loss)
            return tape.gradient(loss, model.trainable_variables)

        vectors = np.zeros((4, 6), np.float32)
        return [error_of(smp.step(step), vectors, optimizer) for optimizer in (None, fixed, dynamic)]
    finally:
        keras.config.set_dtype_policy("float32")


def clipped_by_the_norm_of_all() -> tuple[list[str], bool]:
    """Return the errors of ways to clip by a norm of all gradients, and whether they work after the job."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)

    def gradients_of(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        return tape.gradient(loss, model.trainable_variables)

    step = smp.step(gradients_of)

    @tf.function
    def train(inputs: Any) -> None:
        gradients = [gradient.accumulate() for gradient in step(inputs)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @smp.step
    def clipping_step(inputs: Any) -> Any:
        return tf.clip_by_global_norm(gradients_of(inputs), 1.0)

    vectors = np.zeros((4, 6), np.float32)
    errors = [error_of(train, vectors)]
    gradients = [gradient.accumulate() for gradient in step(vectors)]
    errors.append(error_of(tf.clip_by_global_norm, gradients, 1.0))
    errors.append(error_of(tf.function(tf.linalg.global_norm), gradients))
    errors.append(error_of(lambda: tf.clip_by_global_norm(gradients, 1.0, use_norm=tf.constant(2.0))))
    errors.append(error_of(clipping_step, vectors))
    smp.shutdown()
    tf.clip_by_global_norm(gradients, 1.0)
    variable = keras.Variable(3.0)
    keras.optimizers.SGD(1.0, global_clipnorm=1.0).apply([tf.constant(5.0)], [variable])
    return errors, float(variable) == 2.0


def rank_1_dies(in_graph: bool) -> Any:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step = smp.step(lambda inputs: model(inputs))
    run = tf.function(lambda inputs: step(inputs).merge()) if in_graph else step
    vectors = np.zeros((4, 6), np.float32)
    run(vectors)
    if smp.rank() == 1:
        time.sleep(0.5)
        os._exit(3)
    started = time.monotonic()
    return error_of(run, vectors), time.monotonic() - started


def rank_1_is_stopped() -> Any:
    """Run a step, then stop rank 1's process for some seconds, as a debugger or a full disk may."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step = smp.step(lambda inputs: model(inputs))
    vectors = np.zeros((4, 6), np.float32)
    step(vectors)
    smp.barrier()
    if smp.rank() == 1:
        subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    started = time.monotonic()
    return error_of(step, vectors), time.monotonic() - started


def rank_1_fails() -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])

    @smp.step
    def step(inputs: Any) -> Any:
        if smp.rank() == 1:
            raise ValueError("no such word")
        return model(inputs)

    return error_of(step, np.zeros((4, 6), np.float32))


def rank_0_gathers_alone() -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step, vectors = smp.step(lambda inputs: model(inputs)), np.zeros((4, 6), np.float32)
    step(vectors)
    return error_of(model.get_weights) if smp.rank() == 0 else error_of(step, vectors)


def other_batch_on_rank_1() -> tuple[str, str, str]:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])

    def run(rank: int, call: Callable[[Callable[..., Any]], Any]) -> str:
        return error_of(call(smp.step(lambda inputs: model(inputs))), np.full((4, 6), rank, np.float32))

    eager = run(smp.rank(), lambda step: step)
    in_graph = run(smp.rank(), lambda step: tf.function(lambda inputs: step(inputs).outputs))
    return eager, in_graph, run(0, lambda step: step)


def other_shapes_on_rank_1() -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step = smp.step(lambda inputs: model(inputs))
    return error_of(step, np.zeros((4, 6 - 2 * smp.rank()), np.float32))
