"""`sagemaker.mxnet`."""

from __future__ import annotations

from functools import partial

from sagemaker import _alone
from sagemaker.mxnet.estimator import MXNet

__all__ = ["MXNet"]
__getattr__ = partial(_alone.refuse, __name__)
