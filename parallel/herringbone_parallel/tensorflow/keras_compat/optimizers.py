"""Attributes and methods of optimizers that scripts of TensorFlow 2.3 to 2.6 use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_parallel.tensorflow.patches import Patches, defining_class


class CallableList(list[Any]):
    """A list that returns itself when it is called: `optimizer.variables()` and `optimizer.variables` both work."""

    def __call__(self) -> CallableList:
        return self


def patch(patches: Patches) -> None:
    # `keras.optimizers.Optimizer` inherits from a class for TensorFlow and from this one, which all backends share.
    base = defining_class(keras.optimizers.Optimizer, "apply_gradients")
    variables = vars(base)["variables"].fget
    patches.set(base, "__init__", _constructor(base.__init__))
    patches.set(base, "variables", property(lambda self: CallableList(variables(self))))
    patches.set(base, "weights", property(lambda self: CallableList(variables(self))))
    patches.set(base, "lr", property(_learning_rate, _set_learning_rate))
    patches.set(base, "_decayed_lr", _decayed_lr)
    patches.set(base, "get_weights", _get_weights)
    patches.set(base, "get_gradients", get_gradients)
    patches.set(base, "apply_gradients", _applying(base.apply_gradients))


def get_gradients(optimizer: Any, loss: Any, params: Iterable[Any]) -> list[Any]:
    """Return the gradients of a loss, in a graph: inside `@smp.step` or `tf.function`.

    They are not clipped: Keras 3 clips when it applies them, after the sums over microbatches and ranks. Raises
    `ValueError` with the names of the variables that the loss does not depend on, as Keras did.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            f"{optimizer.name}.get_gradients works on a graph: call it in a function under @smp.step or @tf.function,"
            " or use tf.GradientTape"
        )
    variables = list(params)
    sources = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
    # Looked up in `tf` at each call: the trace of a step patches that attribute to see the gradients.
    gradients: list[Any] = tf.gradients(loss, sources)
    without = [variable.name for variable, gradient in zip(variables, gradients, strict=True) if gradient is None]
    if without:
        raise ValueError(
            f"{optimizer.name}.get_gradients: the loss does not depend on {', '.join(without)}. Leave what does not"
            " train out of the list, or make its layer part of the model's output"
        )
    return gradients


def _constructor(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def __init__(self: Any, learning_rate: Any = 0.001, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        rate = kwargs.pop("lr", learning_rate)
        decay = kwargs.pop("decay", None)
        if decay:
            rate = _decaying(rate, decay)
        construct(self, rate, *args, **kwargs)

    return __init__


def _decaying(rate: Any, decay: float) -> Any:
    """Return the schedule that `decay` meant: rate / (1 + decay x iterations)."""
    if not isinstance(rate, int | float):
        raise ValueError(f"decay={decay} with a {type(rate).__name__}: the schedule decays by itself; leave decay out")
    return keras.optimizers.schedules.InverseTimeDecay(float(rate), decay_steps=1, decay_rate=decay)


def _applying(apply: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(apply)
    def apply_gradients(
        self: Any,
        grads_and_vars: Sequence[tuple[Any, Any]],
        name: str | None = None,  # noqa: ARG001 - Keras 3 gives the operation no name
        experimental_aggregate_gradients: bool = True,
    ) -> None:
        # False meant that the script adds up the gradients of replicas itself. With one replica it makes no difference.
        if not experimental_aggregate_gradients and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                "experimental_aggregate_gradients=False: Keras 3 always adds up the gradients of the replicas of a"
                " tf.distribute strategy. Leave it out, and do not add them up before"
            )
        apply(self, grads_and_vars)

    return apply_gradients


def _learning_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate


def _decayed_lr(optimizer: Any, var_dtype: Any = tf.float32) -> Any:
    """Return the learning rate of this iteration."""
    return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), var_dtype)


def _get_weights(optimizer: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(variable) for variable in optimizer.variables]
