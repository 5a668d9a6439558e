"""`sagemaker.xgboost`."""

from __future__ import annotations

from functools import partial

from sagemaker import _absent
from sagemaker.xgboost.estimator import XGBoost

__all__ = ["XGBoost"]
__getattr__ = partial(_absent.absent, __name__)
