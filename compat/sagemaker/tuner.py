"""`sagemaker.tuner`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import herringbone
from herringbone import (
    CategoricalParameter,
    ContinuousParameter,
    HyperbandStrategyConfig,
    IntegerParameter,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from sagemaker import _absent, analytics
from sagemaker._notebook import asked, on_own_hosts

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


class HyperparameterTuner(herringbone.HyperparameterTuner):
    """See `herringbone.HyperparameterTuner`."""

    TUNING_JOB_NAME_MAX_LENGTH = 32
    SAGEMAKER_ESTIMATOR_MODULE = "sagemaker_estimator_module"
    SAGEMAKER_ESTIMATOR_CLASS_NAME = "sagemaker_estimator_class_name"
    DEFAULT_ESTIMATOR_MODULE = "sagemaker.estimator"
    DEFAULT_ESTIMATOR_CLS_NAME = "Estimator"

    def fit(
        self,
        inputs: Any = None,
        job_name: str | None = None,
        include_cls_metadata: bool | Mapping[str, bool] = False,
        estimator_kwargs: Mapping[str, Any] | None = None,
        wait: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Start the search; see `herringbone.HyperparameterTuner.fit`.

        What SDK v2 passes on and does not use (`logs`, `verbose`) is taken: the log of a search has the ends of trials.
        """
        for unused in ("logs", "verbose"):
            kwargs.pop(unused, None)
        if kwargs.pop("experiment_config", None) is not None:
            raise herringbone.UnsupportedError("experiment_config: there is no experiment service here; leave it out")
        # Of AWS's own attach, which rebuilds an estimator of that class; here a search keeps its request.
        del include_cls_metadata
        return super().fit(inputs, job_name, estimator_kwargs=estimator_kwargs, wait=wait, **kwargs)

    @classmethod
    def attach(cls, tuning_job_name: str, sagemaker_session: Any = None, *_: Any, **__: Any) -> Any:
        """Return the tuner of an earlier search."""
        return super().attach(tuning_job_name, asked(sagemaker_session))

    def describe(self) -> dict[str, Any]:
        """Return AWS's description of the search, with AWS's types and members."""
        return analytics.described(self._found().name)[0] if on_own_hosts(os.environ) else super().describe()

    def analytics(self) -> Any:
        """Return the results as tables."""
        return analytics.HyperparameterTuningJobAnalytics(self._found().name, self.sagemaker_session)

    @property
    def _current_job_name(self) -> str | None:
        """The name of the search, which notebooks read here."""
        return self.latest_tuning_job.name if self.latest_tuning_job else None

    @property
    def sagemaker_session(self) -> Any:
        """The session of the estimator."""
        return self.estimator.sagemaker_session


_absent.refuse_methods(
    HyperparameterTuner,
    ("delete_endpoint", "deploy", "override_resource_config", "visualize_job", "visualize_jobs"),
)
__getattr__ = partial(_absent.absent, __name__)
