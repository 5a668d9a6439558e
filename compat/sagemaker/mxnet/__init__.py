"""`sagemaker.mxnet`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.mxnet.estimator import MXNet

__all__ = ["MXNet"]
__getattr__ = partial(_absent.absent, __name__)
