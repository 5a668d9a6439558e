"""`sagemaker.debugger`."""

from __future__ import annotations

from functools import partial

from sagemaker import _alone
from sagemaker.debugger.debugger import TensorBoardOutputConfig

__all__ = ["TensorBoardOutputConfig"]
__getattr__ = partial(_alone.refuse, __name__)
