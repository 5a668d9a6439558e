"""The call of TensorFlow 2.3 to 2.6 that set all seeds."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import tensorflow as tf

from herringbone_parallel.tensorflow.patches import Patches


def patch(patches: Patches) -> None:
    patches.set(tf.random, "set_seed", _seeding(tf.random.set_seed))


def _seeding(set_seed: Callable[[int], None]) -> Callable[[int], None]:
    """Return a `tf.random.set_seed` that also seeds Python's `random`.

    Keras 3 draws the seeds of initializers and dropout from there.
    """

    @functools.wraps(set_seed)
    def call(seed: int) -> None:
        set_seed(seed)
        random.seed(seed)

    return call
