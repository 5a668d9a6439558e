"""`sagemaker.tensorflow`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.tensorflow.estimator import TensorFlow

__all__ = ["TensorFlow"]
__getattr__ = partial(_absent.absent, __name__)
