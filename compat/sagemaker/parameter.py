"""`sagemaker.parameter`."""

from __future__ import annotations

from functools import partial

from herringbone import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker import _absent

__all__ = ["CategoricalParameter", "ContinuousParameter", "IntegerParameter"]
__getattr__ = partial(_absent.absent, __name__)
