"""Trainings whose place nobody could find again, and what is said about them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.position.api import Samples, Training

INPUTS = np.ones((7, 2), np.float32)


def _read(indices: Any, seeds: Any) -> Any:
    return INPUTS[indices], INPUTS[indices, :1]


def _samples(length: int = 6, read: Any = _read, **options: Any) -> Samples:
    return Samples(length, read, batch_size=2, **options)


def _model(width: int = 2) -> keras.Model:
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _fit(folder: str, data: Any = None, training: Any = None, *callbacks: Any, **options: Any) -> Any:
    data = data or _samples()
    training = training or Training(folder=folder, data=data)
    _model().fit(data, verbose=0, callbacks=[training, *callbacks], **options)
    return data, training


def _generator() -> Any:
    yield from range(3)


class _Keeping(keras.callbacks.Callback):
    kept: Any

    def on_train_begin(self, logs: Any = None) -> None:
        self.kept = object()


def _ahead(folder: str) -> None:
    data = _samples()
    training = Training(folder=folder, model=_model(), data=data)
    for _ in data:
        training.save()


def _resumed(folder: str, *, width: int = 2, length: int = 6, seed: int = 0) -> None:
    data, model = _samples(), _model()
    training = Training(folder=folder, model=model, data=data)
    for inputs, targets in data:
        model.train_on_batch(inputs, targets)
        training.save()
        break
    data = _samples(length, seed=seed)
    Training(folder=folder, model=_model(width), data=data).resume()


def _twice(folder: str) -> None:
    data, training = _fit(folder, epochs=1)
    _fit(folder, data, training, epochs=2)


def _initial(folder: str) -> None:
    _fit(folder, epochs=1)

    class Other(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model._initial_epoch = 2

    _fit(folder, None, None, Other(), epochs=3)


def _alone(folder: str) -> None:
    os.environ["WORLD_SIZE"] = "2"
    _samples()


def _drawing(indices: Any, seeds: Any) -> Any:
    return _read(indices, np.random.rand())


def _callback(folder: str) -> None:
    data, keeping = _samples(), _Keeping()
    _fit(folder, data, Training(folder=folder, data=data, keeping=keeping), keeping)


def _iterator(dataset: Any) -> Any:
    return Training(iterator=iter(dataset))


CASES: dict[str, Callable[[str], Any]] = {
    "no samples": lambda folder: _fit(folder, None, Training(folder=folder)),
    "dataset": lambda _: Training(data=tf.data.Dataset.from_tensor_slices(INPUTS)),
    "generator": lambda _: _iterator(
        tf.data.Dataset.from_generator(_generator, output_signature=tf.TensorSpec((), tf.int64))
    ),
    "random function": lambda _: _iterator(tf.data.Dataset.range(3).map(lambda x: tf.random.uniform(()))),
    "number": lambda _: Training(other=3),
    "drawing": lambda folder: _fit(folder, _samples(read=_drawing)),
    "steps": lambda folder: _fit(folder, steps_per_epoch=2),
    "initial epoch": _initial,
    "second fit": _twice,
    "ahead": _ahead,
    "no optimizer": lambda folder: list(Training(folder=folder, data=(data := _samples())) and data),
    "other model": lambda folder: _resumed(folder, width=3),
    "other data": lambda folder: _resumed(folder, length=7),
    "other order": lambda folder: _resumed(folder, seed=1),
    "callback": _callback,
    "nobody joined": _alone,
}


def error(case: str, folder: str) -> str:
    """Return what is said about a case."""
    try:
        CASES[case](folder)
    except ParallelError as raised:
        return f"ParallelError: {raised}"
    return "accepted"


def iterated(folder: str) -> bool:
    """Say whether an iterator goes on behind the elements that it gave, with what it had shuffled and fetched ahead."""
    dataset = tf.data.Dataset.range(20).shuffle(8).map(lambda x: x * 2).batch(3).prefetch(2).repeat(2)
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
    training = Training(folder=folder, iterator=iterator, counter=tf.Variable(4))
    training.save("four")
    rest = [batch.numpy().tolist() for batch in iterator]
    again = iter(dataset)
    Training(folder=folder, iterator=again, counter=tf.Variable(0)).resume()
    return [batch.numpy().tolist() for batch in again] == rest
