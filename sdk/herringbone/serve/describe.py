"""A job as DescribeTrainingJob, ListTrainingJobs and Search answer it. Pure: rows, records and states in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from herringbone.events.kinds import State
from herringbone.records.description import failure_of
from herringbone.records.index import JobRecord
from herringbone.records.state_lines import listed
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import DEFAULT_ACCOUNT, TUNING_JOB, Settings

# Members of the request that DescribeTrainingJob's answer does not have.
_NOT_DESCRIBED = ("Tags", "SessionChainingConfig")
# Members of CreateTrainingJob that the description of a job on own hosts has, too.
_REQUESTED = (
    "TrainingJobName", "HyperParameters", "AlgorithmSpecification", "InputDataConfig", "OutputDataConfig",
    "ResourceConfig", "StoppingCondition", "CheckpointConfig", "Environment", "RoleArn",
)  # fmt: skip
_SWITCHES = ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining")
_NO_ROLE, _DAY = f"arn:aws:iam::{DEFAULT_ACCOUNT}:role/none", 86_400
_REASON_CHARS = 1024
# SageMaker's own texts, which its SDKs print.
_MESSAGES = {
    "Pending": "Preparing the instances for training",
    "Starting": "Preparing the instances for training",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Restarting": "Restarting the training job",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxCostExceeded": "Training job cost more than the budget pays for",
    "IdleTimeoutExceeded": "Training job used none of its devices for idle_timeout",
    "StoppedByPolicy": "Training job stopped after a fault, as fault_policies says",
    "MaxWaitTimeExceeded": "Training job waited for longer than MaxWaitTimeInSeconds",
}


def description(
    record: ServiceRecord,
    row: JobRecord,
    states: Sequence[State],
    settings: Settings,
    *,
    metrics: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the answer of DescribeTrainingJob; times are seconds since 1970."""
    seconds = None if row.started is None or row.ended is None else round(row.ended - row.started)
    failure = failure_of(row)
    members = {
        **{name: value for name, value in record.request.items() if name not in _NOT_DESCRIBED},
        **summary(record, row, settings),
        "TuningJobArn": settings.arn(record.region, record.tuning, TUNING_JOB) if record.tuning else None,
        # SageMaker's shape requires an address, and names the place of the model from the beginning on.
        "ModelArtifacts": {"S3ModelArtifacts": "" if row.done and row.model is None else model_address(record)},
        "FailureReason": None if failure is None else f"AlgorithmError: {failure.render()}"[:_REASON_CHARS],
        "TrainingStartTime": row.started,
        "TrainingEndTime": row.ended,
        "SecondaryStatusTransitions": transitions(states, row),
        "TrainingTimeInSeconds": seconds,
        "FinalMetricDataList": [_metric(one) for one in metrics if isinstance(one["Value"], float)] or None,
    }
    return completed({name: value for name, value in members.items() if value is not None})


def completed(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with all members that AWS always has, or that its SDKs read without asking.

    >>> completed({"TrainingJobName": "a", "TrainingTimeInSeconds": 9})["BillableTimeInSeconds"]
    9

    Times are of any one type.
    """
    # Its shapes have no job of 0 seconds, and no list of channels without one.
    described = {name: value for name, value in described.items() if name != "InputDataConfig" or value}
    if (seconds := described.get("TrainingTimeInSeconds")) is not None:
        described["TrainingTimeInSeconds"] = seconds = max(1, seconds)
    times = [described[name] for name in ("CreationTime", "TrainingStartTime", "TrainingEndTime") if name in described]
    always = {
        "ModelArtifacts": {"S3ModelArtifacts": ""},
        "StoppingCondition": {"MaxRuntimeInSeconds": _DAY},
        **dict.fromkeys(_SWITCHES, False),
        # SageMaker's is that of one instance, too; nobody is billed here.
        "BillableTimeInSeconds": seconds,
        "LastModifiedTime": max(times, default=None),
        **described,
        # At AWS the key is "" where there is none.
        "OutputDataConfig": {"KmsKeyId": "", "S3OutputPath": "", **described.get("OutputDataConfig", {})},
    }
    return {name: value for name, value in always.items() if value is not None}


def request_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that a job would have had that was not created by a call, from its own description.

    >>> sorted(request_of({"TrainingJobName": "a", "Herringbone": {}, "InputDataConfig": []}))
    ['RoleArn', 'StoppingCondition', 'TrainingJobName']
    """
    known = {name: described[name] for name in _REQUESTED if described.get(name)}
    return {"RoleArn": _NO_ROLE, "StoppingCondition": {"MaxRuntimeInSeconds": _DAY}, **known}


def summary(record: ServiceRecord, row: JobRecord, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListTrainingJobs."""
    members = {
        **listed(row, float),
        "TrainingJobArn": settings.arn(record.region, record.name),
        "LastModifiedTime": max(filter(None, (row.created, row.started, row.ended, record.modified))),
    }
    return {name: value for name, value in members.items() if value is not None}


def model_address(record: ServiceRecord) -> str:
    """Return where the model of a job is, or will be."""
    place = record.request["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    name = "model" if record.request["OutputDataConfig"].get("CompressionType") == "NONE" else "model.tar.gz"
    return f"{place}/{record.name}/output/{name}"


def transitions(states: Sequence[State], row: JobRecord) -> list[dict[str, Any]]:
    """Return the secondary states in order; each ends when the next one begins.

    Without states, as of a job whose folder has none yet, the row's own state is the only one.
    """
    known = list(states) or [State(t=row.created, state=row.secondary_status)]
    if known[-1].state != row.secondary_status and row.ended is not None:
        known.append(State(t=max(row.ended, known[-1].t), state=row.secondary_status))
    answer = []
    for number, state in enumerate(known):
        is_last = number == len(known) - 1
        end = (row.ended if row.done else None) if is_last else known[number + 1].t
        message = _MESSAGES.get(state.state, state.state)
        entry: dict[str, Any] = {"Status": state.state, "StartTime": state.t}
        if end is not None:
            entry["EndTime"] = max(end, state.t)
        entry["StatusMessage"] = f"{message}: {state.why}"[:_REASON_CHARS] if state.why else message
        answer.append(entry)
    return answer


def _metric(metric: Mapping[str, Any]) -> dict[str, Any]:
    # SageMaker's shape has no place for NaN, which is a text here, and its times are numbers.
    return {**metric, "Timestamp": datetime.fromisoformat(metric["Timestamp"]).timestamp()}
