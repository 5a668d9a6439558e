"""`sagemaker.debugger`."""

from __future__ import annotations

from functools import partial

from herringbone import TensorBoardOutputConfig
from sagemaker import _alone

__all__ = ["TensorBoardOutputConfig"]
__getattr__ = partial(_alone.refuse, __name__)
