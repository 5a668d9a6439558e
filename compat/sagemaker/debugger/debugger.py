"""`sagemaker.debugger.debugger`."""

from __future__ import annotations

from functools import partial

from herringbone import TensorBoardOutputConfig
from sagemaker import _absent

__all__ = ["TensorBoardOutputConfig"]
__getattr__ = partial(_absent.absent, __name__)
