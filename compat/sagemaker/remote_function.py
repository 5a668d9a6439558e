"""`sagemaker.remote_function`."""

from __future__ import annotations

from functools import partial

from herringbone import remote
from sagemaker import _absent

__all__ = ["remote"]
__getattr__ = partial(_absent.absent, __name__)
