"""TensorFlow's functions and tensors without copies, and without what a call does for nested arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor

# A function of tensors: takes and returns flat lists.
Flat = Callable[[Sequence[Any]], Sequence[Any]]


def flat(concrete: Any) -> Flat:
    """Return a concrete function as one of flat lists.

    Called as it is, it binds arguments, checks and casts each and records for gradient tapes: a third of a
    millisecond for what is checked already, and that no tape sees.
    """
    captured = concrete.captured_inputs
    inference = concrete.inference_fn

    def call(tensors: Sequence[Any]) -> Sequence[Any]:
        return inference.call_flat(*tensors, *captured) or ()

    return call


def as_tensor(array: Any) -> Any:
    """Return an array as a tensor in the same memory, where it is aligned for TensorFlow; nobody changes it after.

    `tf.convert_to_tensor` copies an array first, and then once more where it is not aligned.
    """
    if not isinstance(array, np.ndarray):
        return tf.convert_to_tensor(array)
    context.ensure_initialized()
    return EagerTensor(array, context.context().device_name, None)


def as_array(tensor: Any) -> Any:
    """Return a tensor as an array in the same memory; `tensor.numpy()` copies it."""
    return np.asarray(tensor)
