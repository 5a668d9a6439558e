"""Whether all ranks have the same weights, told by digests: what does not differ need not be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_parallel.reduce import Engine, agree, all_gather
from herringbone_parallel.reduce.fused import Array
from herringbone_spec.errors import ParallelError


def digest(arrays: Sequence[Array]) -> bytes:
    """Return 32 bytes that differ when a bit of the arrays does.

    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]) != digest([np.ones(2)])
    True
    """
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.digest()


def are_equal(engine: Engine, arrays: Sequence[Array]) -> bool:
    """Say whether all ranks have the same values; all of them ask."""
    return len(set(all_gather(engine, digest(arrays)))) == 1


class Comparison:
    """What ranks compare before they sum the same gradients again and again: once what the gradients are, once weights.

    Weights are compared before the second sum: scripts may broadcast them after their first step, when the optimizer's
    variables are there too. A function that is traced again goes on where the one before was, as perhaps only one rank
    traces it again.
    """

    def __init__(self, gradients: str, variables: Sequence[Any]) -> None:
        self._gradients = gradients
        self._variables = [variable for variable in variables if is_readable(variable)]
        self._sums = 0

    def before_sum(self, engine: Engine) -> None:
        """Raise `ParallelError` on all ranks if their gradients or their weights differ."""
        self._sums += 1
        if self._sums == 1:
            agree(engine, "the gradients", self._gradients)
        if self._sums == 2 and not are_equal(engine, [np.asarray(each.numpy()) for each in self._variables]):
            raise ParallelError(
                "the ranks train from different weights: call broadcast_variables(model.variables, root_rank=0) before"
                " or right after the first step (with Keras, a BroadcastGlobalVariablesCallback), or set the same seed"
                " on all ranks before the model is made"
            )


def is_readable(variable: Any) -> bool:
    """Say whether a variable has a value outside of a graph."""
    value = getattr(variable, "value", None)
    if isinstance(value, tf.Variable):  # a Keras variable around it
        variable = value
    with tf.init_scope():
        return isinstance(variable, tf.Variable) and tf.executing_eagerly()
