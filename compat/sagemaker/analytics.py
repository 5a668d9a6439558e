"""`sagemaker.analytics`: metrics of jobs and results of searches as tables of pandas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

import herringbone
from herringbone import HyperparameterTuner, UnsupportedError
from herringbone.records import home
from herringbone.serve.tunings import adoption
from herringbone.tuner.analytics import TunerAnalytics
from sagemaker import _absent, job
from sagemaker._notebook import asked, on_own_hosts

METRICS_PERIOD_DEFAULT = 60


class TrainingJobAnalytics:
    """The values of a job's metrics, one row for each.

    >>> TrainingJobAnalytics("digits-1", metric_names=["loss"]).dataframe()         # doctest: +SKIP
       timestamp metric_name  value
    0   0.000000        loss   1.21

    `timestamp` counts seconds from the first value, as in SDK v2. Each value has its row: nothing is averaged over a
    `period`, which AWS's metrics need. `start_time` and `end_time` choose the values between.
    """

    CLOUDWATCH_NAMESPACE = "/aws/sagemaker/TrainingJobs"

    def __init__(
        self,
        training_job_name: str,
        metric_names: Sequence[str] | None = None,
        sagemaker_session: Any = None,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        period: int | None = None,
    ) -> None:
        del period
        self._name = training_job_name
        self._metric_names = list(metric_names or ())
        self._session = sagemaker_session
        self._start, self._end = start_time, end_time
        self._rows: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"<sagemaker.TrainingJobAnalytics for {self.name}>"

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._name

    def clear_cache(self) -> None:
        """Forget the values that were read."""
        self._rows = None

    def rows(self, force_refresh: bool = False) -> list[dict[str, Any]]:
        """Return the rows without pandas."""
        if self._rows is None or force_refresh:
            found = [
                metric
                for metric in herringbone.attach(self.name, asked(self._session)).metrics()
                if self._takes(metric)
            ]
            first = min((metric.time for metric in found), default=None)
            self._rows = [
                {
                    "timestamp": (metric.time - first).total_seconds() if first else 0.0,
                    "metric_name": metric.name,
                    "value": metric.value,
                }
                for metric in found
            ]
        return self._rows

    def _takes(self, metric: Any) -> bool:
        after = self._start is None or metric.time.timestamp() >= self._start.timestamp()
        before = self._end is None or metric.time.timestamp() <= self._end.timestamp()
        return after and before and (not self._metric_names or metric.name in self._metric_names)

    def dataframe(self, force_refresh: bool = False) -> Any:
        """Return the rows as a table of pandas."""
        return _table(self.rows(force_refresh), ["timestamp", "metric_name", "value"])

    def export_csv(self, filename: str) -> None:
        """Write the table into a file."""
        self.dataframe().to_csv(filename)


class HyperparameterTuningJobAnalytics(TunerAnalytics):
    """The trials of a search, one row for each."""

    def __init__(self, hyperparameter_tuning_job_name: str, sagemaker_session: Any = None) -> None:
        tuning = HyperparameterTuner.attach(hyperparameter_tuning_job_name, asked(sagemaker_session)).latest_tuning_job
        super().__init__(cast("Any", tuning))

    def description(self, force_refresh: bool = False) -> dict[str, Any]:
        """Return AWS's description of the search."""
        return described(self.name)[0] if on_own_hosts(os.environ) else super().description(force_refresh)

    def training_job_summaries(self, force_refresh: bool = False) -> list[dict[str, Any]]:
        """Return AWS's entries for the trials."""
        return described(self.name)[1] if on_own_hosts(os.environ) else super().training_job_summaries(force_refresh)


def described(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a search of own hosts and its trials with AWS's members and types."""
    search, trials = adoption.describe_search(name, home.find_home())
    return job.with_times("", search), job.with_times("", trials)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> Any:
    try:
        import pandas
    except ImportError:
        raise UnsupportedError("dataframe: pandas is missing: pip install pandas; rows() needs none") from None
    return pandas.DataFrame(rows, columns=columns)


__getattr__ = partial(_absent.absent, __name__)
