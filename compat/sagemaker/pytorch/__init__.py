"""`sagemaker.pytorch`."""

from __future__ import annotations

from functools import partial

from sagemaker import _alone
from sagemaker.pytorch.estimator import PyTorch

__all__ = ["PyTorch"]
__getattr__ = partial(_alone.refuse, __name__)
