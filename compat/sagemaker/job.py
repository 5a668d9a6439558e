"""`sagemaker.job`: jobs as SDK v2 shows them, with the members and types of AWS's DescribeTrainingJob."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

import herringbone
from herringbone.api.follow import raise_failure
from herringbone.serve.describe import completed
from herringbone.serve.settings import DEFAULT_REGION, Settings
from sagemaker import _absent

# Members whose own members have names of users'.
_USERS_NAMES = ("HyperParameters", "StaticHyperParameters", "TunedHyperParameters", "Environment")


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
        """Wait until the job is over; show the log unless `logs` is False or "None". Raises `JobFailedError`."""
        super().wait(timeout, logs=logs not in (False, None, "None"))
        raise_failure(self._record())
        return self


# What a job of SDK v2 has beside training.
_absent.refuse_methods(TrainingJob, ("rule_job_summary", "update"))


def as_aws(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with AWS's types, and with the members that AWS always has.

    >>> as_aws({"TrainingJobName": "a", "CreationTime": "2026-11-29T10:00:00+00:00"})["CreationTime"].hour
    10
    """
    arn = Settings(backend="").arn(DEFAULT_REGION, description["TrainingJobName"])
    typed: dict[str, Any] = with_times("", description)
    return completed({"TrainingJobArn": arn, **typed})


def with_times(name: str, value: Any) -> Any:
    """Return the value of a member with AWS's type: members that end so are times, from texts or seconds since 1970."""
    if isinstance(value, dict):
        return {key: with_times(key, each) for key, each in value.items()} if name not in _USERS_NAMES else value
    if isinstance(value, list):
        return [with_times(name, each) for each in value]
    if name.endswith(("Time", "Timestamp")) and isinstance(value, str | float):
        return datetime.fromisoformat(value) if isinstance(value, str) else datetime.fromtimestamp(value, timezone.utc)
    return value


__getattr__ = partial(_absent.absent, __name__)
