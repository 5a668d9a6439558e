"""Optimizers whose settings no configuration holds, distributed and plain; each function compares their steps."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf


class _Rates(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without `get_config`."""

    def __init__(self, first: float) -> None:
        self._first = first

    def __call__(self, step: Any) -> Any:
        return self._first / (1.0 + tf.cast(step, tf.float32))


class _Own(keras.optimizers.SGD):
    """An optimizer with a factor per variable, a count and sums of its own, and no `get_config` of its own."""

    def __init__(self, learning_rate: Any, factors: dict[str, float]) -> None:
        super().__init__(learning_rate, momentum=0.5)
        self.factors = factors
        self.sums: list[Any] = []
        self.count = self.add_variable((), name="count")

    def build(self, variables: Any) -> None:
        if not self.built:
            self.sums += [self.add_variable_from_reference(variable, name="sum") for variable in variables]
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        total = self.sums[self._get_variable_index(variable)]
        total.assign(0.5 * total + self.factors[variable.name.rpartition("/")[2].partition(":")[0]] * gradient)
        self.count.assign_add(1.0)
        super().update_step(total * (1.0 + self.count), variable, learning_rate)


def _with_attributes() -> Any:
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    optimizer.beta_1, optimizer.clipvalue = 0.5, 0.3
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def _with_a_method_of_its_own() -> Any:
    optimizer = keras.optimizers.SGD(0.1)
    update_step = keras.optimizers.SGD.update_step
    optimizer.update_step = MethodType(
        lambda self, gradient, variable, rate: update_step(self, 2 * gradient, variable, rate), optimizer
    )
    return optimizer


MAKERS: dict[str, Callable[[], Any]] = {
    "attributes": _with_attributes,
    "schedule": lambda: keras.optimizers.Adam(_Rates(0.1)),
    "own": lambda: _Own(_Rates(0.1), {"kernel": 2.0, "bias": 0.5}),
    "method": _with_a_method_of_its_own,
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(_Own(0.1, {"kernel": 2.0, "bias": 0.5}), 4.0),
}


def _trained(name: str, wrap: Callable[[Any], Any], steps_before: int) -> tuple[list[Any], list[Any], bool]:
    """Train, and wrap the optimizer after some steps.

    Return the weights, the optimizer's variables, and whether the original has kept its state.
    """
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    inputs, original = np.random.RandomState(2).randn(8, 4).astype("float32"), MAKERS[name]()

    def train(optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(inputs))))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    train(original, steps_before)
    before = [np.array(variable) for variable in original.variables]
    optimizer = wrap(original)
    train(optimizer, 3)
    kept = [np.array(variable) for variable in original.variables]
    unchanged = optimizer is original or all(map(np.array_equal, before, kept))
    return [np.array(w) for w in model.weights], [np.array(v) for v in optimizer.variables], unchanged


def kept_settings(steps_before: int) -> dict[str, Any]:
    """Return for each optimizer how far its weights and its state are from those of the plain one."""
    hvd.init()
    results = {}
    for name in MAKERS:
        weights, variables, unchanged = _trained(name, hvd.DistributedOptimizer, steps_before)
        plain_weights, plain_variables, _ = _trained(name, lambda optimizer: optimizer, steps_before)
        pairs = zip([*weights, *variables], [*plain_weights, *plain_variables], strict=True)
        results[name] = max(float(np.abs(a - b).max()) for a, b in pairs), unchanged
    return results


def added_up_after_steps() -> tuple[int, int]:
    """Wrap an optimizer after two steps, to step at every second pass; return its count of steps then and later."""
    hvd.init()
    variable, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    before = int(wrapped.iterations)
    for _ in range(4):
        wrapped.apply_gradients([(tf.constant([1.0]), variable)])
    return before, int(wrapped.iterations)
