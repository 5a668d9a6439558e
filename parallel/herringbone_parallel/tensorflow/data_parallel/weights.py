"""The weights that gradients are for, where they can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_parallel.reduce.comparison import Comparison
from herringbone_parallel.reduce.fused import Array

_REMEDY = (
    "call broadcast_variables(model.variables, root_rank=0) before or right after the first step (with Keras, a"
    " BroadcastGlobalVariablesCallback), or set the same seed on all ranks before the model is made"
)


def compare(gradients: str, variables: Sequence[Any]) -> Comparison:
    """Return the comparison of gradients so described, and of these variables.

    A function that is traced again goes on where the one before was, as perhaps only one rank traces it again.
    """
    readable = [variable for variable in variables if is_readable(variable)]

    def values() -> list[Array]:
        return [np.asarray(variable.numpy()) for variable in readable]

    return Comparison(gradients, values, _REMEDY)


def is_readable(variable: Any) -> bool:
    """Say whether a variable has a value outside of a graph."""
    value = getattr(variable, "value", None)
    if isinstance(value, tf.Variable):  # a Keras variable around it
        variable = value
    with tf.init_scope():
        return isinstance(variable, tf.Variable) and tf.executing_eagerly()
