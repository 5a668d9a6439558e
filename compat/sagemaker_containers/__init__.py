"""`sagemaker_containers`: the older name of AWS's training toolkit, which scripts of SKLearn and XGBoost import."""

from __future__ import annotations

from sagemaker_training import _alone, entry_point
from sagemaker_training.environment import Environment

__all__ = ["entry_point", "training_env"]

_alone.check("sagemaker-containers")


def training_env() -> Environment:
    """Return the job as a script sees it."""
    return Environment()
