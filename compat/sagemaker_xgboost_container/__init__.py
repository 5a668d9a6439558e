"""`sagemaker_xgboost_container`: the names of AWS's XGBoost image that scripts import."""

from __future__ import annotations

from sagemaker_training import _alone

_alone.check("sagemaker-xgboost-container")
