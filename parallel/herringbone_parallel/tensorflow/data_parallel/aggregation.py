"""Adds up the gradients of several backward passes for each optimizer step, for scripts with a tape.

    pass            1        2        3        4            aggregation_frequency 2
    gradients       add up   sum      add up   sum          over the ranks: the average of both passes, or their sum
    tape returns    zeros    sums     zeros    sums
    optimizer       skips    steps    skips    steps

The script does not change: Keras's optimizers skip a step for which the sums are incomplete. `DistributedOptimizer`
needs nothing of this file, because it lets Keras add up the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import Aggregation
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.gradients import (
    ReduceOptions,
    densified,
    inner_variable,
    name_of,
    reduce_gradients,
)
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted

# The aggregator of a variable, by the variable's id. Weak: an aggregator ends with the state that owns it.
_aggregator_of: WeakValueDictionary[int, Aggregator] = WeakValueDictionary()


class Aggregator:
    """Adds up the gradients of some variables over `aggregation_frequency` backward passes."""

    def __init__(self, gradients: Sequence[Any], variables: Sequence[Any], settings: Aggregation) -> None:
        # Created while the user's function is traced; `init_scope` keeps the variables out of its graph.
        with tf.init_scope():
            self._totals = [
                None if gradient is None else tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
                for gradient, variable in zip(gradients, variables, strict=True)
            ]
            self._passes = tf.Variable(0, dtype=tf.int64, trainable=False)
            # True when the last gradients that the tape returned are sums over all ranks.
            self.complete = tf.Variable(False, trainable=False)
        self._every, self._divisor = settings.every, settings.every if settings.averaged else 1
        # Keeps the variables alive, so that no other variable gets the id of one of them.
        self._variables = tuple(variables)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], options: ReduceOptions) -> list[Any]:
        """Return the averages over passes and ranks if this pass completes them, and zeros otherwise."""
        totals = [total for total in self._totals if total is not None]
        dense = [densified(gradient) for gradient in gradients if gradient is not None]
        if len(dense) != len(totals):
            raise ParallelError(
                f"{len(dense)} gradients where {len(totals)} were added up in the pass before: with"
                " aggregation_frequency the same variables have a gradient in every pass"
            )
        sums = [total.assign_add(gradient) for total, gradient in zip(totals, dense, strict=True)]
        passes = self._passes.assign_add(1)
        self.complete.assign(passes % self._every == 0)
        summed = [variable for variable, total in zip(variables, self._totals, strict=True) if total is not None]

        def reduce() -> list[tf.Tensor]:
            averages = reduce_gradients([total / self._divisor for total in sums], summed, options)
            for total in totals:
                total.assign(tf.zeros_like(total))
            return averages

        # The count is a variable: one traced function serves both kinds of passes.
        averages = tf.cond(self.complete, reduce, lambda: [tf.zeros_like(total) for total in sums])
        results = iter(averages)
        return [None if total is None else next(results) for total in self._totals]


def aggregate(gradients: Sequence[Any], variables: Sequence[Any], options: ReduceOptions) -> list[Any]:
    """Add up the gradients; return the result of the tape for this pass."""
    current = state.get()
    key = (options, tuple(map(id, variables)))
    if key not in current.aggregators:
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None and not _is_variable(variable):
                raise ParallelError(
                    f"with aggregation_frequency, gradients are those of variables; {name_of(variable)} is not"
                )
        _patch_optimizers()
        current.aggregators[key] = Aggregator(gradients, variables, current.aggregation)
        for variable in variables:
            _aggregator_of[id(inner_variable(variable))] = current.aggregators[key]
    return current.aggregators[key](gradients, variables, options)  # type: ignore[no-any-return]


def _patch_optimizers() -> None:
    """Make Keras's optimizers skip a step whose gradients are incomplete."""
    # The patch stays until the process ends, and does nothing for variables without an aggregator.
    if hasattr(keras.optimizers.Optimizer.apply, "skips"):
        return
    plain: Callable[..., Any] = keras.optimizers.Optimizer.apply

    @not_converted
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        ids = (id(inner_variable(variable)) for variable in variables)
        aggregator = next((_aggregator_of[key] for key in ids if key in _aggregator_of), None)
        if aggregator is None:
            return plain(self, grads, trainable_variables)
        # An optimizer must not create variables inside `tf.cond`.
        if not self.built:
            self.build(variables)

        def step() -> tf.Tensor:
            plain(self, grads, variables)
            return tf.constant(True)

        return tf.cond(aggregator.complete, step, lambda: tf.constant(False))

    apply.skips = True  # type: ignore[attr-defined]
    keras.optimizers.Optimizer.apply = apply


def _is_variable(variable: Any) -> bool:
    return isinstance(inner_variable(variable), tf.Variable)
