"""A tuning job of own hosts under the key names of SageMaker's DescribeHyperParameterTuningJob. Pure.

Members that SageMaker has no name for are below `Herringbone`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from herringbone.plan.request import groups_of
from herringbone.records.index import COMPLETED, FAILED, STOPPED
from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial
from herringbone.tuner.strategies.warm_start import overall_best
from herringbone.tuner.trials import best

if TYPE_CHECKING:
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.parameters import AnyRange
    from herringbone.tuner.store import TrialRecord, TuningRecord, TuningState

STOPPING = "Stopping"


def best_of(definition: TuningDefinition, records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the best objective, of equal ones the first; None while none has one.

    >>> best_of(definition, records).job                       # doctest: +SKIP
    'digits-007'
    """
    trial = best([record.trial() for record in records], definition.objective_type)
    return None if trial is None else next(record for record in records if record.number == trial.number)


def status_of(state: TuningState, *, stopping: bool) -> str:
    """Return the status that users see: Stopping between the request to stop and the end."""
    return STOPPING if stopping and not state.done else state.status


def describe_tuning(
    name: str, record: TuningRecord, state: TuningState, trials: Sequence[TrialRecord], *, stopping: bool
) -> dict[str, Any]:
    """Return the description; `trials` are judged, `stopping` says that somebody asked to stop the search."""
    definition = record.definition
    chosen = best_of(definition, trials)
    members = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobStatus": status_of(state, stopping=stopping),
        "HyperParameterTuningJobConfig": _config(definition),
        "TrainingJobDefinition": _training(definition, record),
        "WarmStartConfig": _warm_start(definition),
        "TrainingJobStatusCounters": job_counters(trials),
        "ObjectiveStatusCounters": objective_counters(trials),
        "BestTrainingJob": None if chosen is None else trial_summary(definition, chosen),
        "OverallBestTrainingJob": _overall_best(definition, trials),
        "FailureReason": state.reason if state.status == FAILED else None,
        "CreationTime": _iso(record.created),
        "HyperParameterTuningEndTime": _iso(state.ended),
        "LastModifiedTime": _iso(max([record.created, *(trial.ended or trial.proposed for trial in trials)])),
        "Tags": list(record.tags) or None,
        "Herringbone": {"Backend": record.backend, "Seed": definition.seed}
        | ({"Reason": state.reason} if state.reason and state.status != FAILED else {}),
    }
    return {key: value for key, value in members.items() if value is not None}


def trial_summary(definition: TuningDefinition, record: TrialRecord) -> dict[str, Any]:
    """Return one trial as HyperParameterTrainingJobSummary, with the tuned hyperparameters as texts."""
    tuned = {name: str(value) for name, value in record.values.items()}
    if record.resource is not None and definition.resource_name is not None:
        tuned[definition.resource_name] = str(record.resource)
    objective = None
    if record.objective is not None:
        objective = {
            "Type": definition.objective_type,
            "MetricName": definition.metric,
            "Value": record.objective if record.objective - record.objective == 0 else str(record.objective),
        }
    members = {
        "TrainingJobName": record.job,
        "TrainingJobStatus": record.status,
        "CreationTime": _iso(record.proposed),
        "TrainingEndTime": _iso(record.ended),
        "TunedHyperParameters": tuned,
        "FailureReason": record.failure,
        "FinalHyperParameterTuningJobObjectiveMetric": objective,
        "ObjectiveStatus": objective_status(record),
        "Herringbone": {"Number": record.number, "Resumes": record.resumes, "EarlyStopped": record.early_stopped},
    }
    return {key: value for key, value in members.items() if value is not None}


def _overall_best(definition: TuningDefinition, trials: Sequence[TrialRecord]) -> dict[str, Any] | None:
    """Return the best trial of a search and its parents, where SageMaker names one: of identical data and code."""
    if definition.warm_start_type is not WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM:
        return None
    winner = overall_best(definition, [record.trial() for record in trials])
    if not isinstance(winner, PriorTrial):
        chosen = best_of(definition, trials)
        return None if chosen is None else trial_summary(definition, chosen)
    objective = {"Type": definition.objective_type, "MetricName": definition.metric, "Value": winner.objective}
    return {
        "TrainingJobName": winner.job,
        "TuningJobName": winner.parent,
        "TunedHyperParameters": {name: str(value) for name, value in winner.values.items()},
        "FinalHyperParameterTuningJobObjectiveMetric": objective,
        "ObjectiveStatus": "Succeeded",
    }


def parameter_ranges(ranges: Mapping[str, AnyRange]) -> dict[str, list[dict[str, Any]]]:
    """Return ranges as the member ParameterRanges of CreateHyperParameterTuningJob, with empty lists, as AWS's SDK."""
    lists: dict[str, list[dict[str, Any]]] = {
        f"{kind}ParameterRanges": [] for kind in ("Integer", "Continuous", "Categorical")
    }
    for name, values in ranges.items():
        kind = type(values).__name__.removesuffix("Parameter")
        lists[f"{kind}ParameterRanges"].append(values.as_tuning_range(name))
    return lists


def _config(definition: TuningDefinition) -> dict[str, Any]:
    limits = {
        "MaxNumberOfTrainingJobs": definition.job_limit,
        "MaxParallelTrainingJobs": definition.max_parallel_jobs,
        "MaxRuntimeInSeconds": definition.max_runtime_in_seconds,
    }
    members = {
        "Strategy": definition.strategy,
        "StrategyConfig": None
        if definition.hyperband is None
        else {"HyperbandStrategyConfig": definition.hyperband.to_input_req()},
        "HyperParameterTuningJobObjective": {"Type": definition.objective_type, "MetricName": definition.metric},
        "ResourceLimits": {key: value for key, value in limits.items() if value is not None},
        "ParameterRanges": parameter_ranges(definition.ranges),
        "TrainingJobEarlyStoppingType": definition.early_stopping_type,
        "TuningJobCompletionCriteria": None if definition.completion is None else definition.completion.to_input_req(),
        "RandomSeed": definition.seed,
    }
    return {key: value for key, value in members.items() if value is not None}


def _training(definition: TuningDefinition, record: TuningRecord) -> dict[str, Any]:
    groups = groups_of(record.asked)
    return {
        "StaticHyperParameters": {name: str(value) for name, value in definition.static.items()},
        "ResourceConfig": {
            "InstanceType": groups[0].instance_type,
            "InstanceCount": sum(group.instance_count for group in groups),
        },
    }


def _warm_start(definition: TuningDefinition) -> dict[str, Any] | None:
    if definition.warm_start_type is None:
        return None
    return {
        "WarmStartType": definition.warm_start_type.value,
        "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": name} for name in definition.parents],
    }


def job_counters(trials: Sequence[TrialRecord]) -> dict[str, int]:
    """Return the member TrainingJobStatusCounters."""
    counts = [trial.status for trial in trials]
    return {
        "Completed": counts.count(COMPLETED),
        "InProgress": sum(not trial.done for trial in trials),
        "RetryableError": 0,
        "NonRetryableError": counts.count(FAILED),
        "Stopped": counts.count(STOPPED),
    }


def objective_counters(trials: Sequence[TrialRecord]) -> dict[str, int]:
    """Return the member ObjectiveStatusCounters."""
    statuses = [objective_status(trial) for trial in trials]
    return {status: statuses.count(status) for status in ("Succeeded", "Pending", "Failed")}


def objective_status(record: TrialRecord) -> str:
    """Return the member ObjectiveStatus; NaN is no result, as for the strategies."""
    if not record.done:
        return "Pending"
    return "Failed" if record.objective is None or math.isnan(record.objective) else "Succeeded"


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat()
