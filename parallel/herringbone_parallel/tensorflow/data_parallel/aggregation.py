"""Several backwards for each step of the optimizer, by the job's `aggregation_frequency`, for scripts with a tape.

    pass            1        2        3        4            aggregation_frequency 2
    gradients       add up   sum      add up   sum          over the ranks: the average of both passes, or their sum
    tape returns    zeros    sums     zeros    sums
    optimizer       skips    steps    skips    steps

The script is not changed: Keras's optimizers skip the steps for which the sums are not there. (`DistributedOptimizer`
has Keras add up the gradients; nothing here is needed for it.)
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
    Travel,
    densified,
    inner_variable,
    name_of,
    reduce_gradients,
)
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted

# By the identity of a variable: who adds up its gradients.
_of_variable: WeakValueDictionary[int, Aggregator] = WeakValueDictionary()


class Aggregator:
    """Adds up the gradients of some variables over as many backwards as the job asks for."""

    def __init__(self, gradients: Sequence[Any], variables: Sequence[Any], asked: Aggregation) -> None:
        with tf.init_scope():
            self._totals = [
                None if gradient is None else tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
                for gradient, variable in zip(gradients, variables, strict=True)
            ]
            self._passes = tf.Variable(0, dtype=tf.int64, trainable=False)
            # Whether the last gradients that the tape returned are sums over all ranks.
            self.complete = tf.Variable(False, trainable=False)
        self._every, self._divisor = asked.every, asked.every if asked.averaged else 1
        # As long as there is an aggregator, no other variable gets the identity of one of these.
        self._variables = tuple(variables)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], travel: Travel) -> list[Any]:
        """Return the averages over backwards and ranks when this pass completes them, zeros before."""
        totals = [total for total in self._totals if total is not None]
        given = [densified(gradient) for gradient in gradients if gradient is not None]
        if len(given) != len(totals):
            raise ParallelError(
                f"{len(given)} gradients where {len(totals)} were added up in the pass before: with"
                " aggregation_frequency the same variables have a gradient in every pass"
            )
        sums = [total.assign_add(gradient) for total, gradient in zip(totals, given, strict=True)]
        passes = self._passes.assign_add(1)
        self.complete.assign(passes % self._every == 0)
        kept = [variable for variable, total in zip(variables, self._totals, strict=True) if total is not None]

        def reduce() -> list[tf.Tensor]:
            averages = reduce_gradients([each / self._divisor for each in sums], kept, travel)
            for total in totals:
                total.assign(tf.zeros_like(total))
            return averages

        averages = tf.cond(self.complete, reduce, lambda: [tf.zeros_like(each) for each in sums])
        results = iter(averages)
        return [None if total is None else next(results) for total in self._totals]


def aggregate(gradients: Sequence[Any], variables: Sequence[Any], travel: Travel) -> list[Any]:
    """Add the gradients up; return what the tape returns in this pass."""
    current = state.get()
    key = (travel, tuple(map(id, variables)))
    if key not in current.aggregators:
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None and not _is_variable(variable):
                raise ParallelError(
                    f"with aggregation_frequency, gradients are those of variables; {name_of(variable)} is not"
                )
        _teach_optimizers()
        current.aggregators[key] = Aggregator(gradients, variables, current.aggregation)
        for variable in variables:
            _of_variable[id(inner_variable(variable))] = current.aggregators[key]
    return current.aggregators[key](gradients, variables, travel)  # type: ignore[no-any-return]


def _teach_optimizers() -> None:
    """Make Keras's optimizers skip a step whose gradients are still being added up."""
    if hasattr(keras.optimizers.Optimizer.apply, "skips"):
        return
    plain: Callable[..., Any] = keras.optimizers.Optimizer.apply

    @not_converted
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        known = (id(inner_variable(each)) for each in variables)
        waiting = next((_of_variable[each] for each in known if each in _of_variable), None)
        if waiting is None:
            return plain(self, grads, trainable_variables)
        if not self.built:
            self.build(variables)

        def step() -> tf.Tensor:
            plain(self, grads, variables)
            return tf.constant(True)

        return tf.cond(waiting.complete, step, lambda: tf.constant(False))

    apply.skips = True  # type: ignore[attr-defined]
    keras.optimizers.Optimizer.apply = apply


def _is_variable(variable: Any) -> bool:
    return isinstance(inner_variable(variable), tf.Variable)
