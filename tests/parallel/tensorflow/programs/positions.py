"""Trainings that are ended at any step and begun again: each step is written down, and at last the weights.

A line of the log is JSON: epoch, step, numbers of the samples, loss. The last one is a digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.tensorflow.data_parallel import api as sdp
from herringbone_parallel.tensorflow.position.api import Samples, Training

SAMPLES, EPOCHS = 22, 2
# The first column of a batch is the sample's number, which no model sees.
INPUTS = np.concatenate(
    [np.arange(SAMPLES)[:, None], np.random.RandomState(0).rand(SAMPLES, 4)], axis=1, dtype=np.float32
)


class StoppedError(Exception):
    """The training ends here, as if its process was killed."""


def read(indices: Any, seeds: Any) -> Any:
    """Return a batch whose samples are augmented by their seeds."""
    noise = [np.random.default_rng(seed).random() * 0.1 for seed in seeds]
    targets = INPUTS[indices, 1:].sum(1, keepdims=True) + np.array(noise, np.float32)[:, None]
    return INPUTS[indices], targets


def network(dropout: float) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    first = [layers.Lambda(lambda x: x[:, 1:]), layers.Dense(8), layers.BatchNormalization()]
    return keras.Sequential([*first, layers.Dropout(dropout), layers.Dense(1)])


class Log(keras.callbacks.Callback):
    """Writes down each step, and stops at one."""

    def __init__(self, log: str, stop: int, data: Any) -> None:
        super().__init__()
        self._log, self._stop, self._data = Path(log), stop, data

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        order, step = self._data.order, int(self.model.optimizer.iterations.numpy())
        samples = order.batch(batch)[0].tolist()
        write(self._log, [order.epoch, step, samples, float(logs["loss"]), float(np.random.rand())])
        if step == self._stop:
            raise StoppedError


def write(log: Path, line: Any) -> None:
    with log.open("a", buffering=1) as file:
        file.write(json.dumps(line) + "\n")


def digest(model: keras.Model) -> str:
    return hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in model.get_weights())).hexdigest()


def loop(folder: str, log: str, stop: int = 0, order: str = "last", options: Any = None) -> list[Any]:
    """Train by Keras's `fit`; `stop` is a step at which it ends as if killed, or 0."""
    return _fit(folder, log, stop, order, dict(options or {}), keras.optimizers.Adam(0.01))


def replicated(folder: str, log: str, stop: int = 0) -> list[Any]:
    """Train by `fit` on the ranks of the data-parallel library."""
    sdp.init()
    try:
        return _fit(
            folder, f"{log}-{sdp.rank()}", stop, "last", {}, sdp.DistributedOptimizer(keras.optimizers.Adam(0.01))
        )
    finally:
        sdp.shutdown()


def _fit(folder: str, log: str, stop: int, order: str, options: dict[str, Any], optimizer: Any) -> list[Any]:
    model = network(0.3)
    steps = options.pop("steps_per_execution", 1)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps)
    data = Samples(SAMPLES, read, batch_size=4, seed=3, **options)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    training = Training(folder=folder, every=2, data=data, plateau=plateau)
    others = [Log(log, stop, data), plateau, schedule]
    callbacks = [training, *others] if order == "first" else [*others, training]
    try:
        model.fit(data, epochs=EPOCHS, callbacks=callbacks, verbose=0, validation_data=(INPUTS[:4], INPUTS[:4, :1]))
        write(Path(log), [-1, -1, digest(model)])
    except StoppedError:
        pass
    return lines(log)


def lines(log: str) -> list[Any]:
    """Return what was written down last about each step."""
    steps = {}
    for line in Path(log).read_text().splitlines():
        epoch, step, *rest = json.loads(line)
        steps[step] = [epoch, *rest]
    return list(steps.values())


def own_loop(folder: str, log: str, stop: int = 0, batch_size: int = 4, dropout: float = 0.3) -> list[Any]:
    """Train by a loop of one's own, on the ranks of the data-parallel library."""
    sdp.init()
    try:
        return _own_loop(folder, f"{log}-{sdp.rank()}", stop, batch_size, dropout)
    finally:
        sdp.shutdown()


def _own_loop(folder: str, log: str, stop: int, batch_size: int, dropout: float) -> list[Any]:
    model = network(dropout)
    model.build((None, 5))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    drawn = tf.random.Generator.from_seed(5)
    data = Samples(SAMPLES, read, batch_size=batch_size, seed=3)
    training = Training(folder=folder, model=model, optimizer=optimizer, data=data, drawn=drawn)
    training.resume()
    for epoch in range(training.epoch, EPOCHS):
        for inputs, targets in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
            gradients = sdp.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            numbers = [float(drawn.normal([])), float(tf.random.uniform([])), float(np.random.rand())]
            samples = inputs[:, 0].astype(int).tolist()
            write(Path(log), [epoch, training.step, samples, float(loss), numbers])
            if training.step % 2 == 0:
                training.save()
            if training.step == stop:
                return lines(log)
    write(Path(log), [-1, -1, digest(model)])
    return lines(log)
