"""`sagemaker.tuner`."""

from __future__ import annotations

from functools import partial

from herringbone import (
    CategoricalParameter,
    ContinuousParameter,
    HyperbandStrategyConfig,
    HyperparameterTuner,
    IntegerParameter,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from sagemaker import _alone

__all__ = [
    "HyperparameterTuner",
    "ContinuousParameter",
    "IntegerParameter",
    "CategoricalParameter",
    "WarmStartConfig",
    "WarmStartTypes",
    "StrategyConfig",
    "HyperbandStrategyConfig",
    "TuningJobCompletionCriteriaConfig",
]
__getattr__ = partial(_alone.refuse, __name__)
