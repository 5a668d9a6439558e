"""What model parallelism refuses, and how it ends when a rank is gone: each returns what was said."""

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


def said(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  whatever it is, the test compares it
        return f"{type(error).__name__}: {error}"
    return "nothing"


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

    found = [said(model, vectors), said(step, vectors[:5]), said(outer, vectors), said(talking, vectors)]
    found.append(said(lambda: smp.step(jit_compile=True)(step)))
    found.append(said(lambda: smp.step(inline=True)(step)))
    found.append(said(lambda: smp.step(non_split_inputs=["label"])(step)))
    found.append(said(lambda: smp.partition(2).__enter__()))
    found.append(said(smp.DistributedModel, keras.Sequential()))
    found.append(said(smp.send, 1, smp.rank(), smp.RankType.WORLD_RANK))
    found.append(said(smp.StepOutput([tf.ones(1)]).accumulate, "sum"))
    return found


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
    return said(step, np.zeros((4, 6), np.float32))


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
        return [said(smp.step(step), vectors, optimizer) for optimizer in (None, fixed, dynamic)]
    finally:
        keras.config.set_dtype_policy("float32")


def clipped_by_the_norm_of_all() -> tuple[str, bool]:
    """Return what is said of an optimizer that clips so, and whether it may when the job is over."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0)

    @smp.step
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        return tape.gradient(loss, model.trainable_variables)

    @tf.function
    def train(inputs: Any) -> None:
        gradients = [gradient.accumulate() for gradient in step(inputs)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    text = said(train, np.zeros((4, 6), np.float32))
    smp.shutdown()
    variable = keras.Variable(3.0)
    keras.optimizers.SGD(1.0, global_clipnorm=1.0).apply([tf.constant(5.0)], [variable])
    return text, float(variable) == 2.0


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
    begin = time.monotonic()
    return said(run, vectors), time.monotonic() - begin


def rank_1_is_stopped() -> Any:
    """Step once, then stop rank 1's process for some time, as a debugger or a full disk may."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step = smp.step(lambda inputs: model(inputs))
    vectors = np.zeros((4, 6), np.float32)
    step(vectors)
    smp.barrier()
    if smp.rank() == 1:
        subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.monotonic()
    return said(step, vectors), time.monotonic() - begin


def rank_1_fails() -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])

    @smp.step
    def step(inputs: Any) -> Any:
        if smp.rank() == 1:
            raise ValueError("no such word")
        return model(inputs)

    return said(step, np.zeros((4, 6), np.float32))


def other_shapes_on_rank_1() -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    step = smp.step(lambda inputs: model(inputs))
    return said(step, np.zeros((4, 6 - 2 * smp.rank()), np.float32))
