"""`sagemaker.pytorch`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.pytorch.estimator import PyTorch

__all__ = ["PyTorch"]
__getattr__ = partial(_absent.absent, __name__)
