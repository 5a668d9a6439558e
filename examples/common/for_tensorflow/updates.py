"""Training steps of a global batch in TensorFlow: add up the gradients of its parts, and update at a scheduled rate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import keras
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

from common.for_tensorflow.world import World
from common.order import Order
from common.settings import learning_rate, schedule_of
from herringbone_parallel.tensorflow.recipes.api import LAMB, LARS


@keras.saving.register_keras_serializable(package="herringbone_examples")
class RAdam(keras.optimizers.Adam):
    """Adam that starts with steps of momentum alone, until its second moments are reliable (arXiv 1908.03265)."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable, as `torch.optim.RAdam` does."""
        ops, number = keras.ops, self._get_variable_index(variable)
        # In fp32 the differences below would lose four of seven digits in the first steps.
        step, rate = ops.cast(self.iterations + 1, "float64"), ops.cast(learning_rate, variable.dtype)
        mean, square = self._momentums[number], self._velocities[number]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        fading = ops.power(self.beta_2, step)
        longest = 2 / (1 - self.beta_2) - 1
        length = longest - 2 * step * fading / (1 - fading)
        # Below a length of 5 the variance of the second moments has no bound. The maximum keeps the root real there.
        reliable = ops.maximum(length, 5.0)
        scale = (reliable - 4) * (reliable - 2) * longest / ((longest - 4) * (longest - 2) * reliable)
        adapted = ops.cast(ops.sqrt(scale * (1 - fading)), variable.dtype) / (ops.sqrt(square) + self.epsilon)
        factor = ops.where(length > 5, adapted, ops.ones_like(adapted))
        corrected = mean / ops.cast(1 - ops.power(self.beta_1, step), variable.dtype)
        self.assign_sub(variable, rate * corrected * factor)


def build_optimizer(settings: argparse.Namespace, world: World, model: keras.Model, parts: int) -> Any:
    """Build the optimizer that the settings name, for steps of `parts` backward passes of each rank.

    Gradients are averaged over ranks and parts, then clipped. Biases and normalisations have no weight decay.
    """
    shared = {"weight_decay": settings.weight_decay, "global_clipnorm": settings.clip}
    if settings.optimizer == "lars":
        optimizer = LARS(learning_rate(settings), trust=settings.trust, **shared)
    elif settings.optimizer == "lamb":
        optimizer = LAMB(learning_rate(settings), **shared)
    elif settings.optimizer in ("adamw", "radam"):
        kind = RAdam if settings.optimizer == "radam" else keras.optimizers.AdamW
        # Torch's epsilon.
        optimizer = kind(learning_rate(settings), epsilon=1e-8, **shared)
    else:
        optimizer = keras.optimizers.SGD(learning_rate(settings), momentum=0.9, **shared)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    if world.is_launched:
        # The dict's aggregation_frequency says how many passes make a step.
        # A batch reads most rows of a word table, so sums are smaller than the slices of all ranks.
        optimizer = sdp.DistributedOptimizer(optimizer, sparse_as_dense=True)
    elif parts > 1:
        optimizer.gradient_accumulation_steps = parts
    optimizer.build(model.trainable_variables)
    return optimizer


class Updates:
    """Runs the training steps of the epochs that `settings` and `order` describe, starting with the first one.

    updates = Updates(settings, world, model, build_optimizer(settings, world, model, order.parts_per_step), order)
    for step in order.epoch(0, rank=world.rank):
        loss = updates.step((batches[part] for part in step), loss_of)

    A part is an array, or a structure of arrays. `loss_of` is traced, so it must be a pure function of the arrays.
    """

    def __init__(
        self, settings: argparse.Namespace, world: World, model: keras.Model, optimizer: Any, order: Order
    ) -> None:
        self._world, self._model, self._optimizer = world, model, optimizer
        self._factor = schedule_of(settings).by_steps(order.steps_per_epoch)
        self._rate, self._steps = learning_rate(settings), 0
        # The loss of the compiled backward pass. A method of an object is a new one with each access, but an equal one.
        self._loss_of: Callable[[Any], tf.Tensor] | None = None

    def step(self, parts: Iterable[Any], loss_of: Callable[[Any], tf.Tensor]) -> float:
        """Run one step on this rank's parts. Return the mean loss of all parts of all ranks."""
        # The weights change in the last part only. Under a loss scale the inner optimizer changes them.
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        inner.learning_rate.assign(self._rate * self._factor(self._steps))
        if loss_of != self._loss_of:
            self._loss_of = loss_of
            # Batches may differ in a size, such as the number of hidden words: trace for any size after the second one.
            self._compiled = tf.function(self._backward, reduce_retracing=True)
        losses = [self._compiled(part) for part in parts]
        self._steps += 1
        return self._world.total(sum(map(float, losses)))[0] / (len(losses) * self._world.ranks)

    def _backward(self, part: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.cast(self._loss_of(part), tf.float32)
            scaled = self._optimizer.scale_loss(loss)
        variables = self._model.trainable_variables
        self._optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss
