"""Optimizers that apply the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import (
    ReduceOp,
    Travel,
    densified,
    reduce_gradients,
    refuse_devices,
)
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted
from herringbone_parallel.tensorflow.require import require_keras_on_tensorflow


def DistributedOptimizer(  # noqa: N802 - AWS's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    compression: Any = Compression.none,
    sparse_as_dense: bool = True,
    op: ReduceOp = ReduceOp.AVERAGE,
    bucket_cap_mb: float | None = None,
    **devices: str,
) -> Any:
    """Return an optimizer like the given one that applies the average of all ranks' gradients.

        model.compile(optimizer=sdp.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss=...)

    Of Keras's optimizers it is one more of the same class, with the same settings and state, which plain Keras loads
    from a saved model; of those in `tf.compat.v1.train`, one around it, for graphs of TensorFlow 1. With the setting
    `aggregation_frequency` of the job's `distribution`, Keras's step only every n-th time: by the average of all
    gradients since, or by their sum where `average_aggregated_gradients` is False. Gradients are averaged over the
    ranks first, then clipped. `bucket_cap_mb` is how much travels at once; without it, buckets are cut for the links
    between the ranks. Raises `ParallelError` for anything else, and for `device_dense` and `device_sparse`.
    """
    refuse_devices(**devices)
    travel = Travel(compression, op, sparse_as_dense, bucket_cap_mb)
    asked = state.get().aggregation
    return distributed(
        optimizer, travel, name=name, use_locking=use_locking, frequency=asked.every, summed=not asked.averaged
    )


def distributed(
    optimizer: Any,
    travel: Travel,
    *,
    name: str | None,
    use_locking: bool,
    frequency: int,
    summed: bool = False,
    schedule_by_steps: bool = True,
) -> Any:
    """Return the optimizer.

    `summed`: gradients of several backwards are added up, not averaged. `schedule_by_steps`: a learning rate schedule
    counts steps, as with batches `frequency` times as large, and not backwards.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if use_locking:
            raise ParallelError("use_locking=True is for the optimizers of tf.compat.v1.train; Keras's have no locks")
        made = _keras(optimizer, travel, name=name, frequency=frequency)
        made.scale = frequency if summed else 1
        _innermost(made).backwards_per_step = frequency if schedule_by_steps else 1
        return made
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if frequency > 1:
            raise ParallelError(
                f"aggregation_frequency {frequency} works with Keras's optimizers; {type(optimizer).__name__} is one of"
                " tf.compat.v1.train: take the setting out, or use a Keras optimizer"
            )
        return _GraphOptimizer(optimizer, travel, name, use_locking)
    raise ParallelError(
        "DistributedOptimizer wraps Keras 3 optimizers and those of tf.compat.v1.train, not"
        f" {type(optimizer).__module__}.{type(optimizer).__name__}"
    )


def _keras(optimizer: Any, travel: Travel, *, name: str | None, frequency: int) -> Any:
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scaled and keras.config.dtype_policy().name == "mixed_float16":
        # As `compile` does; around ours it would let each rank decide by itself whether to skip a step.
        optimizer, scaled = keras.optimizers.LossScaleOptimizer(optimizer), True
    base = type(optimizer)
    if isinstance(_innermost(optimizer), _KerasOptimizer) or issubclass(base, _KerasOptimizer):
        raise ParallelError(f"{optimizer.name} is distributed already: its gradients would be summed twice")
    require_keras_on_tensorflow()
    if not hasattr(base, "_clip_gradients"):
        raise ParallelError(
            f"Keras {keras.__version__} applies gradients in another way than the releases up to 3.15; use one of those"
        )
    given = _innermost(optimizer)
    if frequency > 1 and given.gradient_accumulation_steps:
        raise ParallelError(
            f"aggregation_frequency {frequency}, and {given.name} has gradient_accumulation_steps"
            f" {given.gradient_accumulation_steps}: both add up gradients over several steps; keep one"
        )
    named = {"name": name or optimizer.name}
    config = given.get_config() if scaled else {**given.get_config(), **named}
    if frequency > 1:
        config["gradient_accumulation_steps"] = frequency
    result = made = _of_kind(type(given), _CountsSteps if scaled else _Averaged).from_config(config)
    _keep_exclusions(given, made)
    if scaled:
        result = _of_kind(base, _LossScaled)(**{**optimizer.get_config(), **named, "inner_optimizer": made})
    result.travel = travel
    if optimizer.built:
        result.build(optimizer._trainable_variables)
        for new, old in zip(result.variables, optimizer.variables, strict=False):
            new.assign(old)
    return result


def _innermost(optimizer: Any) -> Any:
    """Return who updates the weights: the optimizer, or the one that it scales losses for."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _of_kind(base: type, kind: type) -> Any:
    # A saved model names the class that plain Keras is to make again; one of others by what it is registered as.
    module = "keras.optimizers" if base.__module__.startswith("keras.") else base.__module__
    return type(keras.saving.get_registered_name(base), (kind, base), {"__module__": module})


def _keep_exclusions(given: Any, made: Any) -> None:
    """Hand over what `exclude_from_weight_decay` was told: a configuration does not have it."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(given, name):
            setattr(made, name, getattr(given, name))


# The rest of the class is a Keras optimizer's own.
_RestOfOptimizer: Any = object


class _KerasOptimizer(_RestOfOptimizer):
    """What makes a Keras optimizer one that applies all ranks' gradients."""

    travel = Travel()
    scale = 1

    def _averaged(self, gradients: Any, variables: Any) -> list[Any]:
        averages = reduce_gradients(list(gradients), list(variables), self.travel)
        return averages if self.scale == 1 else [None if each is None else each * self.scale for each in averages]


class _CountsSteps(_RestOfOptimizer):
    """Has a learning rate schedule count steps, as with larger batches; Keras has it count backwards."""

    backwards_per_step = 1

    def _get_current_learning_rate(self) -> Any:
        schedule = self._learning_rate
        if self.backwards_per_step == 1 or not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return super()._get_current_learning_rate()
        return schedule(self._iterations // self.backwards_per_step)


class _Averaged(_CountsSteps, _KerasOptimizer):
    """Averages where gradients are complete and not clipped yet: steps that only add up gradients send nothing."""

    @not_converted
    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        # Behind a function, as Keras would take the variables in an attribute for the optimizer's own.
        self._applied: Callable[[], Any] = lambda: trainable_variables
        dense = [densified(gradient) for gradient in grads] if self.travel.sparse_as_dense else grads
        super()._backend_apply_gradients(dense, trainable_variables)

    @not_converted
    def _clip_gradients(self, grads: Any) -> Any:
        return super()._clip_gradients(self._averaged(grads, self._applied()))


class _LossScaled(_KerasOptimizer):
    """Averages before the gradients are looked at: all ranks must find the same overflow, and skip the same steps."""

    @not_converted
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Apply the gradients' averages; Keras's own method, which `apply_gradients` calls too."""
        variables = (
            self.inner_optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        return super().apply(self._averaged(grads, variables), trainable_variables)


class _GraphOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of TensorFlow 1 around another one."""

    def __init__(self, optimizer: Any, travel: Travel, name: str | None, use_locking: bool) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._travel = optimizer, travel

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a gradient, averaged over all ranks, and its variable."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        averages = reduce_gradients([gradient for gradient, _ in pairs], variables, self._travel)
        return list(zip(averages, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients; they are averages already."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self) -> Any:
        """Return the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names()

    def variables(self) -> Any:
        """Return the wrapped optimizer's variables."""
        return self._optimizer.variables()
