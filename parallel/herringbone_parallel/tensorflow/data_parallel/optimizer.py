"""Optimizers that apply averages of all ranks' gradients.

A Keras optimizer becomes an object of a new class, made of the optimizer's own class and one of the classes below:

    Adam, no loss scale        -> (_Averaged, Adam)
    LossScaleOptimizer(Adam)   -> (_LossScaled, LossScaleOptimizer) around (_CountsSteps, Adam)
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import (
    ReduceOp,
    ReduceOptions,
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
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    bucket_cap_mb: float | None = None,
    **devices: str,
) -> Any:
    """Return an optimizer like the one passed in, which applies the average of all ranks' gradients.

        model.compile(optimizer=sdp.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss=...)

    For a Keras optimizer, returns one of the same class name with the same settings and state; plain Keras loads it
    from a saved model. For an optimizer of `tf.compat.v1.train`, returns a wrapper for TensorFlow 1 graphs. Gradients
    are averaged over the ranks first, then clipped.

    `bucket_cap_mb`: MiB that travel at once; by default, buckets are cut for the links between the ranks. With the
    setting `aggregation_frequency` (n) of the job's `distribution`, a Keras optimizer steps every n-th time, by the
    average of the gradients since its last step, or by their sum if `average_aggregated_gradients` is False. Raises
    `ParallelError` for other optimizers, and for `device_dense` and `device_sparse`.
    """
    refuse_devices(**devices)
    options = ReduceOptions(compression, op, sparse_as_dense, bucket_cap_mb)
    settings = state.get().aggregation
    return distributed(
        optimizer, options, name=name, use_locking=use_locking, frequency=settings.every, summed=not settings.averaged
    )


def distributed(
    optimizer: Any,
    options: ReduceOptions,
    *,
    name: str | None,
    use_locking: bool,
    frequency: int,
    summed: bool = False,
    schedule_by_steps: bool = True,
) -> Any:
    """Return the optimizer.

    `summed`: the gradients of several backward passes are added up, not averaged. `schedule_by_steps`: a learning rate
    schedule counts steps, as with batches `frequency` times as large, and not backward passes.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer):
        if use_locking:
            raise ParallelError("use_locking=True is for the optimizers of tf.compat.v1.train; Keras's have no locks")
        result = _keras(optimizer, options, name=name, frequency=frequency)
        # Keras always averages the passes that it adds up.
        result.scale = frequency if summed else 1
        _innermost(result).backwards_per_step = frequency if schedule_by_steps else 1
        return result
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if frequency > 1:
            raise ParallelError(
                f"aggregation_frequency {frequency} works with Keras's optimizers; {type(optimizer).__name__} is one of"
                " tf.compat.v1.train: take the setting out, or use a Keras optimizer"
            )
        return _GraphOptimizer(optimizer, options, name, use_locking)
    raise ParallelError(
        "DistributedOptimizer wraps Keras 3 optimizers and those of tf.compat.v1.train, not"
        f" {type(optimizer).__module__}.{type(optimizer).__name__}"
    )


def _keras(optimizer: Any, options: ReduceOptions, *, name: str | None, frequency: int) -> Any:
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scaled and keras.config.dtype_policy().name == "mixed_float16":
        # `compile` would wrap the result in the same way. Each rank would then decide alone whether to skip a step.
        optimizer, scaled = keras.optimizers.LossScaleOptimizer(optimizer), True
    base = type(optimizer)
    if isinstance(_innermost(optimizer), _KerasOptimizer) or issubclass(base, _KerasOptimizer):
        raise ParallelError(f"{optimizer.name} is distributed already: its gradients would be summed twice")
    require_keras_on_tensorflow()
    if not hasattr(base, "_clip_gradients"):
        raise ParallelError(
            f"Keras {keras.__version__} applies gradients in another way than the releases up to 3.15; use one of those"
        )
    original = _innermost(optimizer)
    if frequency > 1 and original.gradient_accumulation_steps:
        raise ParallelError(
            f"aggregation_frequency {frequency}, and {original.name} has gradient_accumulation_steps"
            f" {original.gradient_accumulation_steps}: both add up gradients over several steps; keep one"
        )
    result = innermost = _copied(original, _CountsSteps if scaled else _Averaged)
    if frequency > 1:
        _add_up(innermost, frequency)
    if scaled:
        result = _copied(optimizer, _LossScaled, innermost)
    result.name = name or optimizer.name
    result.reduce_options = options
    return result


def _copied(original: Any, behaviour: type, inner: Any = None) -> Any:
    """Return a copy of a Keras optimizer, of a derived class, with variables of its own and the same other attributes.

    Keras's `from_config` would lose what `get_config` does not return, and an optimizer's own class may lack that.
    `inner` replaces the optimizer inside of a loss scale.
    """
    kind = _derived_class(type(original), behaviour)
    result = kind.__new__(kind)
    rate = original._learning_rate
    rate = float(rate) if isinstance(rate, keras.Variable) else rate
    # The number of steps and the rate; `__init__` of the derived class would need the script's arguments.
    keras.optimizers.Optimizer.__init__(result, rate, name=original.name)
    old, made = original._variables, len(result._variables)
    more = [result.add_variable(v.shape, dtype=v.dtype, aggregation=v.aggregation, name=v.name) for v in old[made:]]
    copies = {id(variable): copy for variable, copy in zip(old, [*result._variables[:made], *more], strict=True)}
    # An optimizer of a loaded model has state already: momentum, the number of steps.
    for variable in old:
        copies[id(variable)].assign(variable)
    copies[id(getattr(original, "inner_optimizer", None))] = inner

    def copied(value: Any) -> Any:
        if isinstance(value, list):
            return [copied(item) for item in value]
        if isinstance(value, dict):
            return {key: copied(item) for key, item in value.items()}
        if isinstance(value, MethodType) and value.__self__ is original:
            return MethodType(value.__func__, result)
        return copies.get(id(value), value)

    # Without the tracker, Keras cannot take the model's variables among the attributes for the optimizer's own.
    tracker = vars(result).pop("_tracker")
    for name, value in vars(original).items():
        if not name.startswith("_self_") and name not in ("_variables", "_tracker"):
            is_tracked = type(value).__name__.startswith("Tracked")
            setattr(result, name, type(value)(copied(value), tracker) if is_tracked else copied(value))
    vars(result)["_tracker"] = tracker
    return result


def _add_up(optimizer: Any, frequency: int) -> None:
    """Make an optimizer step every `frequency` backward passes."""
    optimizer.gradient_accumulation_steps = frequency
    # From now on the optimizer counts backward passes.
    optimizer._iterations.assign(optimizer._iterations * frequency)
    if optimizer.built:
        optimizer._accumulated_gradients = [
            optimizer.add_variable_from_reference(variable, name="gradient_accumulator")
            for variable in optimizer._trainable_variables
        ]


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights: the one inside a loss scale, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _derived_class(base: type, behaviour: type) -> Any:
    # A saved model contains these two names, and plain Keras finds its own class by them. A class of another package
    # is found by its registered name.
    module = "keras.optimizers" if base.__module__.startswith("keras.") else base.__module__
    return type(keras.saving.get_registered_name(base), (behaviour, base), {"__module__": module})


# For mypy: at run time the classes below are mixed into a class of Keras, which has the other methods.
_RestOfOptimizer: Any = object


class _KerasOptimizer(_RestOfOptimizer):
    """Adds averages over all ranks to a Keras optimizer."""

    reduce_options = ReduceOptions()
    scale = 1

    def _averaged(self, gradients: Any, variables: Any) -> list[Any]:
        averages = reduce_gradients(list(gradients), list(variables), self.reduce_options)
        return (
            averages if self.scale == 1 else [None if average is None else average * self.scale for average in averages]
        )


class _CountsSteps(_RestOfOptimizer):
    """Makes a learning rate schedule count steps, as with larger batches; Keras counts backward passes."""

    backwards_per_step = 1

    def _get_current_learning_rate(self) -> Any:
        schedule = self._learning_rate
        if self.backwards_per_step == 1 or not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return super()._get_current_learning_rate()
        return schedule(self._iterations // self.backwards_per_step)


class _Averaged(_CountsSteps, _KerasOptimizer):
    """Averages gradients when they are complete and before they are clipped; a pass that only adds up sends nothing."""

    @not_converted
    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        # In a function, because Keras would track variables in an attribute as the optimizer's own.
        self._applied: Callable[[], Any] = lambda: trainable_variables
        dense = [densified(gradient) for gradient in grads] if self.reduce_options.sparse_as_dense else grads
        super()._backend_apply_gradients(dense, trainable_variables)

    @not_converted
    def _clip_gradients(self, grads: Any) -> Any:
        return super()._clip_gradients(self._averaged(grads, self._applied()))


class _LossScaled(_KerasOptimizer):
    """Averages before Keras looks for overflows, so that all ranks find the same overflow and skip the same steps."""

    @not_converted
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Apply the averages of the gradients; Keras's `apply_gradients` calls this method, too."""
        variables = (
            self.inner_optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        return super().apply(self._averaged(grads, variables), trainable_variables)


class _GraphOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps an optimizer of TensorFlow 1."""

    def __init__(self, optimizer: Any, options: ReduceOptions, name: str | None, use_locking: bool) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._options = optimizer, options

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a gradient, which is averaged over all ranks, and its variable."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        averages = reduce_gradients([gradient for gradient, _ in pairs], variables, self._options)
        return list(zip(averages, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Apply gradients, which are averages already."""
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
