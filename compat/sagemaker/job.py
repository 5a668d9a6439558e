"""`sagemaker.job`: jobs as SDK v2 shows them, with the members and types of AWS's DescribeTrainingJob."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import herringbone
from herringbone.serve.describe import completed
from herringbone.serve.settings import DEFAULT_REGION, Settings
from sagemaker import _absent


class TrainingJob(herringbone.TrainingJob):
    """A job of an estimator."""

    @property
    def job_name(self) -> str:
        """The name of the job."""
        return self.name

    def describe(self) -> dict[str, Any]:
        """Return AWS's description of the job: times as times, and the members that AWS always has."""
        return as_aws(super().describe())

    def wait(self, logs: bool | str = True, timeout: float | None = None) -> Any:
        """Wait until the job is over; show the log unless `logs` is False or "None"."""
        return super().wait(timeout, logs=logs not in (False, None, "None"))


def as_aws(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with AWS's types, and with the members that AWS always has.

    >>> as_aws({"TrainingJobName": "a", "CreationTime": "2026-11-29T10:00:00+00:00"})["CreationTime"].hour
    10
    """
    arn = Settings(backend="").arn(DEFAULT_REGION, description["TrainingJobName"])
    typed = {name: _typed(name, value) for name, value in description.items()}
    return completed({"TrainingJobArn": arn, **typed})


def _typed(name: str, value: Any) -> Any:
    """Return a value with AWS's type: members that end so are times."""
    if isinstance(value, dict):
        return {key: _typed(key, each) for key, each in value.items()} if name != "HyperParameters" else value
    if isinstance(value, list):
        return [_typed(name, each) for each in value]
    if isinstance(value, str) and name.endswith(("Time", "Timestamp")):
        return datetime.fromisoformat(value)
    return value


__getattr__ = partial(_absent.absent, __name__)
