"""`sagemaker.tuner`."""

from __future__ import annotations

from functools import partial

from herringbone import HyperparameterTuner, ContinuousParameter, IntegerParameter, CategoricalParameter, WarmStartConfig, WarmStartTypes, StrategyConfig, HyperbandStrategyConfig, TuningJobCompletionCriteriaConfig
from sagemaker import _alone

__all__ = ["HyperparameterTuner", "ContinuousParameter", "IntegerParameter", "CategoricalParameter", "WarmStartConfig", "WarmStartTypes", "StrategyConfig", "HyperbandStrategyConfig", "TuningJobCompletionCriteriaConfig"]
__getattr__ = partial(_alone.refuse, __name__)
