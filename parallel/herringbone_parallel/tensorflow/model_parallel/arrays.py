"""TensorFlow's tensors as numpy's arrays, and back, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor


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
