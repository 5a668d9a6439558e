"""`sagemaker.remote_function`."""

from __future__ import annotations

from functools import partial

from herringbone import remote
from sagemaker import _alone

__all__ = ["remote"]
__getattr__ = partial(_alone.refuse, __name__)
