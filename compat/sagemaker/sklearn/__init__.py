"""`sagemaker.sklearn`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.sklearn.estimator import SKLearn

__all__ = ["SKLearn"]
__getattr__ = partial(_absent.absent, __name__)
