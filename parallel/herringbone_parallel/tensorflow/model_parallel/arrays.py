"""Conversions between TensorFlow's tensors and numpy's arrays that copy nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor


def as_tensor(array: Any) -> Any:
    """Return an array as a tensor in the same memory if it is aligned for TensorFlow; the caller must not change it.

    `tf.convert_to_tensor` copies an array once, and a second time where it is not aligned.
    """
    if not isinstance(array, np.ndarray):
        return tf.convert_to_tensor(array)
    # EagerTensor needs an initialized context, and this may be the first tensor of the process.
    context.ensure_initialized()
    return EagerTensor(array, context.context().device_name, None)


def as_array(tensor: Any) -> Any:
    """Return a tensor as an array in the same memory; `tensor.numpy()` would copy it."""
    return np.asarray(tensor)
