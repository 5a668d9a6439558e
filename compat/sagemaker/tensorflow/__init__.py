"""`sagemaker.tensorflow`."""

from __future__ import annotations

from functools import partial

from sagemaker import _alone
from sagemaker.tensorflow.estimator import TensorFlow

__all__ = ["TensorFlow"]
__getattr__ = partial(_alone.refuse, __name__)
