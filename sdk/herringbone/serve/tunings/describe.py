"""A tuning job as Describe..., List... and Search answer it. Pure: records, states and trials in; times in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from herringbone.records.index import COMPLETED, FAILED
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import TUNING_JOB, Settings
from herringbone.serve.tunings.requests import shared_request, tuned_texts
from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial, TuningDefinition
from herringbone.tuner.description import best_of, job_counters, objective_counters, objective_status, status_of
from herringbone.tuner.store import TrialRecord, TuningState
from herringbone.tuner.strategies.warm_start import overall_best
from herringbone_contract.constants import Key

_CONFIG, _TRIAL = "HyperParameterTuningJobConfig", "TrainingJobDefinition"
_REASON_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Look:
    """One tuning job at one moment. `trials` are judged: early stopping has cut their curves.

    `parents_trials` has the times at which the trials of its parents were created, by their names.
    """

    record: ServiceRecord
    definition: TuningDefinition
    state: TuningState
    trials: Sequence[TrialRecord]
    stopping: bool
    parents_trials: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return status_of(self.state, stopping=self.stopping)


def description(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the answer of DescribeHyperParameterTuningJob.

    >>> description(look, settings)["BestTrainingJob"]["TrainingJobName"]                  # doctest: +SKIP
    'digits-007'
    """
    record, definition = look.record, look.definition
    chosen = best_of(definition, look.trials)
    request = {name: value for name, value in record.request.items() if name != "Tags"}
    # SageMaker adds the objective to the hyperparameters that all trials share; its SDK reads it there.
    static = {**request[_TRIAL].get("StaticHyperParameters", {}), Key.TUNING_METRIC: definition.metric}
    # The SDK sends the hosts as HyperParameterTuningResourceConfig, and its `attach` reads ResourceConfig.
    hosts = shared_request(request)["ResourceConfig"]
    members = {
        **request,
        _TRIAL: {**request[_TRIAL], "StaticHyperParameters": static, "ResourceConfig": hosts},
        **summary(look, settings),
        "BestTrainingJob": None if chosen is None else trial_summary(look, chosen, settings),
        "OverallBestTrainingJob": _overall_best(look, settings),
        "FailureReason": _failure(look),
        "ConsumedResources": {"RuntimeInSeconds": _seconds(look.trials)},
    }
    for name in ("Strategy", "ResourceLimits"):
        # Of the summary alone: here they are in the configuration.
        del members[name]
    return {name: value for name, value in members.items() if value is not None}


def summary(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListHyperParameterTuningJobs."""
    record, config = look.record, look.record.request[_CONFIG]
    changed = [trial.ended or trial.proposed for trial in look.trials]
    members = {
        "HyperParameterTuningJobName": record.name,
        "HyperParameterTuningJobArn": settings.arn(record.region, record.name, TUNING_JOB),
        "HyperParameterTuningJobStatus": look.status,
        "Strategy": config["Strategy"],
        "CreationTime": record.created,
        "HyperParameterTuningEndTime": look.state.ended,
        "LastModifiedTime": max([record.created, record.modified, look.state.ended or 0.0, *changed]),
        "TrainingJobStatusCounters": job_counters(look.trials),
        "ObjectiveStatusCounters": objective_counters(look.trials),
        "ResourceLimits": config["ResourceLimits"],
    }
    return {name: value for name, value in members.items() if value is not None}


def trial_summary(look: Look, trial: TrialRecord, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListTrainingJobsForHyperParameterTuningJob."""
    definition, record = look.definition, look.record
    members = {
        "TrainingJobName": trial.job,
        "TrainingJobArn": settings.arn(record.region, trial.job),
        "CreationTime": trial.proposed,
        "TrainingStartTime": trial.started,
        "TrainingEndTime": trial.ended,
        "TrainingJobStatus": trial.status,
        "TunedHyperParameters": tuned_texts(definition, record.request, trial),
        "FailureReason": None if trial.failure is None else trial.failure[:_REASON_CHARS],
        "FinalHyperParameterTuningJobObjectiveMetric": _objective(definition, trial.objective),
        "ObjectiveStatus": objective_status(trial),
    }
    return {name: value for name, value in members.items() if value is not None}


def objective_value(entry: Mapping[str, Any]) -> float | None:
    """Return the objective of a trial's summary, None for one without."""
    metric = entry.get("FinalHyperParameterTuningJobObjectiveMetric")
    return None if metric is None else float(metric["Value"])


def _overall_best(look: Look, settings: Settings) -> dict[str, Any] | None:
    """Return the best trial of a search and its parents, where SageMaker names one: of identical data and code."""
    definition = look.definition
    if definition.warm_start_type is not WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM:
        return None
    winner = overall_best(definition, [record.trial() for record in look.trials])
    if not isinstance(winner, PriorTrial):
        chosen = best_of(definition, look.trials)
        return None if chosen is None else trial_summary(look, chosen, settings)
    return {
        "TrainingJobName": winner.job,
        "TrainingJobArn": settings.arn(look.record.region, winner.job),
        "TuningJobName": winner.parent,
        # SageMaker's shape requires a time. A trial that was deleted has none any more.
        "CreationTime": look.parents_trials.get(winner.job, look.record.created),
        "TrainingJobStatus": COMPLETED,
        "TunedHyperParameters": {name: str(value) for name, value in winner.values.items()},
        "FinalHyperParameterTuningJobObjectiveMetric": _objective(definition, winner.objective),
        "ObjectiveStatus": "Succeeded",
    }


def _objective(definition: TuningDefinition, value: float | None) -> dict[str, Any] | None:
    # JSON has neither NaN nor infinity.
    if value is None or not math.isfinite(value):
        return None
    return {"Type": definition.objective_type, "MetricName": definition.metric, "Value": value}


def _failure(look: Look) -> str | None:
    reason = look.record.problem or (look.state.reason if look.state.status == FAILED else None)
    return reason[:_REASON_CHARS] if reason else None


def _seconds(trials: Sequence[TrialRecord]) -> int:
    """Return the seconds of all trials that are over, from their proposals to their ends."""
    return round(sum(trial.ended - trial.proposed for trial in trials if trial.ended is not None))
