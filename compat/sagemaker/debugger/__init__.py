"""`sagemaker.debugger`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.debugger.debugger import TensorBoardOutputConfig

__all__ = ["TensorBoardOutputConfig"]
__getattr__ = partial(_absent.absent, __name__)
