"""States, metrics and seeds as scripts of TensorFlow 2.3 to 2.6 set them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from herringbone_parallel.tensorflow.patches import Patches


def patch(patches: Patches) -> None:
    metric = keras.metrics.Metric

    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:  # noqa: N807
        super(metric, cls).__init_subclass__(**kwargs)
        if "reset_states" in vars(cls) and "reset_state" not in vars(cls):
            # Keras calls the one, the script's author knew the other.
            cls.reset_state = cls.reset_states

    patches.set(metric, "__init_subclass__", classmethod(__init_subclass__))
    patches.set(metric, "reset_states", _reset_states)
    patches.set(keras.Model, "reset_states", _reset_model)
    patches.set(tf.random, "set_seed", _seeding(tf.random.set_seed))


def _reset_states(metric: Any) -> None:
    """Call the innermost `reset_state` that does not lead here again."""
    for each in type(metric).__mro__:
        own = vars(each)
        if "reset_state" in own and own["reset_state"] is not own.get("reset_states"):
            own["reset_state"](metric)
            return


def _reset_model(model: Any) -> None:
    """Reset the states of the model's recurrent layers."""
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "reset_state"):
            layer.reset_state()


def _seeding(set_seed: Callable[[int], None]) -> Callable[[int], None]:
    """Return `tf.random.set_seed` that Keras obeys as well: it draws seeds for initializers and dropout from Python."""

    @functools.wraps(set_seed)
    def call(seed: int) -> None:
        set_seed(seed)
        random.seed(seed)

    return call
