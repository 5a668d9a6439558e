"""`sagemaker.inputs`."""

from __future__ import annotations

from functools import partial

from herringbone import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker import _absent

__all__ = ["TrainingInput", "FileSystemInput", "ShuffleConfig"]
__getattr__ = partial(_absent.absent, __name__)
