"""`sagemaker.huggingface`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.huggingface.estimator import HuggingFace

__all__ = ["HuggingFace"]
__getattr__ = partial(_absent.absent, __name__)
