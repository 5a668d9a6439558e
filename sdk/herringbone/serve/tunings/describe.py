"""A tuning job as Describe..., List... and Search answer it. Pure: records, states and trials in; times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from herringbone.records.index import COMPLETED
from herringbone.serve.actions import CONFIG, TRIAL
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import TUNING_JOB, Settings
from herringbone.serve.tunings.requests import shared_request, tuned_texts
from herringbone.tuner.description import search_members, trial_members
from herringbone.tuner.look import TuningLook
from herringbone.tuner.store import TrialRecord
from herringbone_contract.constants import Key

_REASON_CHARS = 1024
# Members that only a description has.
_NOT_LISTED = ("FailureReason", "BestTrainingJob", "OverallBestTrainingJob")


@dataclass(frozen=True, slots=True)
class Look:
    """One tuning job at one moment: the service's record, and the search.

    `parents_trials` has the times at which the trials of its parents were created, by their names.
    """

    record: ServiceRecord
    search: TuningLook
    parents_trials: Mapping[str, float] = field(default_factory=dict)


def description(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the answer of DescribeHyperParameterTuningJob.

    >>> description(look, settings)["BestTrainingJob"]["TrainingJobName"]                  # doctest: +SKIP
    'digits-007'
    """
    record, search = look.record, look.search
    request = {name: value for name, value in record.request.items() if name != "Tags"}
    # SageMaker adds the objective to the hyperparameters that all trials share; its SDK reads it there.
    static = {**request[TRIAL].get("StaticHyperParameters", {}), Key.TUNING_METRIC: search.definition.metric}
    # The SDK sends the hosts as HyperParameterTuningResourceConfig, and its `attach` reads ResourceConfig.
    hosts = shared_request(request)["ResourceConfig"]
    found = search_members(search, lambda trial: trial_summary(look, trial, settings))
    reason = record.problem or found["FailureReason"]
    members = {
        **request,
        TRIAL: {**request[TRIAL], "StaticHyperParameters": static, "ResourceConfig": hosts},
        **found,
        **_listed(look, settings),
        "FailureReason": reason[:_REASON_CHARS] if reason else None,
        "ConsumedResources": {"RuntimeInSeconds": _seconds(search.trials)},
    }
    if (overall := found["OverallBestTrainingJob"]) is not None:
        # SageMaker's shape requires a time and a status. A trial that was deleted has no time any more.
        job = overall["TrainingJobName"]
        created = look.parents_trials.get(job, record.created)
        arn = settings.arn(record.region, job)
        members["OverallBestTrainingJob"] = {
            "TrainingJobArn": arn,
            "CreationTime": created,
            "TrainingJobStatus": COMPLETED,
            **overall,
        }
    return {name: value for name, value in members.items() if value is not None}


def summary(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListHyperParameterTuningJobs."""
    found = search_members(look.search, lambda trial: trial_summary(look, trial, settings))
    config = look.record.request[CONFIG]
    members = {
        **{name: value for name, value in found.items() if name not in _NOT_LISTED and value is not None},
        **{name: config[name] for name in ("Strategy", "ResourceLimits")},
    }
    return {**members, **_listed(look, settings)}


def _listed(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the members that the service's record decides, of lists and descriptions."""
    record = look.record
    return {
        "HyperParameterTuningJobArn": settings.arn(record.region, record.name, TUNING_JOB),
        "CreationTime": record.created,
        "LastModifiedTime": max(record.created, record.modified, look.search.changed, look.search.ended or 0.0),
    }


def trial_summary(look: Look, trial: TrialRecord, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListTrainingJobsForHyperParameterTuningJob."""
    definition, record = look.search.definition, look.record
    members = {
        **trial_members(definition, trial),
        "TrainingJobArn": settings.arn(record.region, trial.job),
        "TunedHyperParameters": tuned_texts(definition, record.request, trial),
    }
    return members | ({"FailureReason": trial.failure[:_REASON_CHARS]} if trial.failure is not None else {})


def objective_value(entry: Mapping[str, Any]) -> float | None:
    """Return the objective of a trial's summary, None for one without."""
    metric = entry.get("FinalHyperParameterTuningJobObjectiveMetric")
    return None if metric is None else float(metric["Value"])


def _seconds(trials: Sequence[TrialRecord]) -> int:
    """Return the seconds of all trials that are over, from their proposals to their ends."""
    return round(sum(trial.ended - trial.proposed for trial in trials if trial.ended is not None))
