"""`sagemaker.huggingface`."""

from __future__ import annotations

from functools import partial

from sagemaker import _alone
from sagemaker.huggingface.estimator import HuggingFace

__all__ = ["HuggingFace"]
__getattr__ = partial(_alone.refuse, __name__)
