"""One rank of run.py: time each kind of step in turn, and print the times as a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import herringbone_parallel.tensorflow.data_parallel.api as sdp
from herringbone_parallel.tensorflow.data_parallel import state

LAYERS, WIDTH = 8, 1024


class Steps:
    """The kinds of steps. `late` starts its sums after the whole backward pass."""

    def __init__(self, batch: int) -> None:
        self._weights = [
            tf.Variable(tf.random.stateless_normal([WIDTH, WIDTH], [1, layer]) * 0.04) for layer in range(LAYERS)
        ]
        self._images = tf.random.stateless_normal([batch, WIDTH], [2, 2])
        self._optimizer = keras.optimizers.SGD(1e-3)
        self._optimizer.build(self._weights)
        self._flat = np.zeros(LAYERS * WIDTH * WIDTH, np.float32)

    @tf.function
    def forward(self) -> tf.Tensor:
        hidden = self._images
        for weight in self._weights:
            hidden = tf.tanh(hidden @ weight)
        return tf.reduce_mean(hidden)

    def _apply(self, wrap: Any) -> None:
        with tf.GradientTape() as tape:
            loss = self.forward()
        gradients = wrap(tape).gradient(loss, self._weights)
        self._optimizer.apply_gradients(zip(gradients, self._weights, strict=True))

    @tf.function
    def alone(self) -> None:
        self._apply(lambda tape: tape)

    @tf.function
    def step(self) -> None:
        self._apply(sdp.DistributedGradientTape)

    @tf.function
    def late(self) -> None:
        self._apply(lambda tape: sdp.DistributedGradientTape(_Whole(tape)))

    def sums(self) -> None:
        state.get().engine.all_reduce(self._flat, op="average").wait()


class _Whole:
    """A tape that returns no gradient before all gradients are final."""

    def __init__(self, tape: tf.GradientTape) -> None:
        self._tape = tape

    def gradient(self, target: Any, sources: Any) -> Any:
        gradients = self._tape.gradient(target, sources)
        with tf.control_dependencies(gradients):
            return [tf.identity(gradient) for gradient in gradients]


def main(batch: int, repeats: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    sdp.init()
    steps = Steps(batch)
    times: dict[str, list[float]] = {name: [] for name in ("forward", "alone", "step", "late", "sums")}
    for repeat in range(-2, repeats):  # the first two rounds trace the functions and compare the ranks' weights
        for name, seconds in times.items():
            sdp.oob_allreduce(tf.constant(0.0))
            began = time.perf_counter()
            getattr(steps, name)()
            if repeat >= 0:
                seconds.append(time.perf_counter() - began)
    print(json.dumps(times), flush=True)
    sdp.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
