"""Record the steps of Keras's `fit` and `train_on_batch` on TensorFlow, in rehearsals.

Keras takes batches from its iterator inside a graph. Here they are taken outside, so that each can be looked at,
and each step is a call of its own: the graph of one step stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.library_hooks import require
from herringbone_parallel.fingerprints import Array, Facts, Recorder, digest
from herringbone_parallel.tensorflow.library_hooks import FINGERPRINTS
from herringbone_parallel.tensorflow.position.parts import SEED, generators

_COUNTER = re.compile(r"_\d+(?=/)")


def record() -> None:
    """Record the steps of this process from now on, and send them to the job's events."""
    if keras.backend.backend() != "tensorflow":
        return
    require(FINGERPRINTS)
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    recorder, make = Recorder(), TensorFlowTrainer.make_train_function

    def make_train_function(self: Any, force: bool = False) -> None:
        before = self.train_function
        make(self, force)
        if self.train_function is not before:
            self.train_function = _recorded(recorder, self, self.train_function)

    TensorFlowTrainer.make_train_function = make_train_function


def _recorded(recorder: Recorder, model: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    strategy = model.distribute_strategy

    def train(iterator: Iterator[Any]) -> Any:
        result = None
        for data in islice(iterator, int(model.steps_per_execution)):
            recorder.batch(lambda data=data: _arrays(strategy, data))  # type: ignore[misc]
            with recorder.step(model.optimizer, lambda: _facts(model)):
                result = function(iter([data]))
        if result is None:
            raise StopIteration
        return result

    return train


def _arrays(strategy: Any, data: Any) -> list[Array]:
    leaves = [
        strategy.experimental_local_results(leaf)
        for leaf in tf.nest.flatten(data)
        if not isinstance(leaf, (type(None), tf.experimental.Optional))
    ]
    return [np.concatenate([np.atleast_1d(part.numpy()) for part in parts]) for parts in leaves]


def _facts(model: Any) -> Facts:
    optimizer = model.optimizer
    state: dict[str, list[Array]] = {}
    for variable in optimizer.variables:
        if variable is not getattr(optimizer, "_learning_rate", None):
            state.setdefault(variable.path.rpartition("_")[2].rpartition("/")[2], []).append(variable.numpy())
    settings = {
        name: value
        for name, value in optimizer.get_config().items()
        if name != "name" and isinstance(value, (bool, int, float, str))
    }
    trained = {id(variable) for variable in model.trainable_variables}
    named = {
        # Keras counts the layers of a process: their order is that of the model.
        f"{number}:{_COUNTER.sub('', variable.path)}": variable
        for number, variable in enumerate(model.variables)
    }
    return Facts(
        {name: variable.numpy() for name, variable in named.items()},
        frozenset(name for name, variable in named.items() if id(variable) not in trained),
        state,
        {**settings, "learning_rate": float(optimizer.learning_rate)},
        lambda: _random(model),
    )


def _random(model: Any) -> dict[str, str]:
    """Return digests of the numbers from which layers, and random operations of Keras and TensorFlow, draw."""
    seeds = [variable.numpy() for variable in model.non_trainable_variables if variable.path.endswith(SEED)]
    numbers = {name: digest(one.state.numpy()) for name, one in generators().items() if one is not None}
    return {**numbers, "layers": digest(*seeds)} if seeds else numbers
