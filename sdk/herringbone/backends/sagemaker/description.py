"""Read an answer of DescribeTrainingJob: as a row of the index, as a failure, and next to the request. Pure."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from herringbone.records.index import COMPLETED, FAILED, STOPPED, TERMINAL, JobRecord
from herringbone_contract.constants import masked
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_summary
from herringbone_contract.masking import is_mask, masked_hyperparameters

# SageMaker writes "AlgorithmError: <text of /opt/ml/output/failure>, exit code: 1"; other kinds have no exit code.
_REASON = re.compile(r"(?P<kind>[A-Z][A-Za-z]+): (?P<text>.*?)(?:, exit code: (?P<code>\d{1,9}))?", re.DOTALL)
_CONTAINER_FAILED = "AlgorithmError"


def row_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a job's row that SageMaker knows.

    >>> row_of({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Downloading", "CreationTime": 7.0})["created"]
    7.0

    Times are `datetime`s, as boto3 returns them, or seconds since 1970.
    """
    status = str(description["TrainingJobStatus"])
    ended = seconds_since_1970(description.get("TrainingEndTime"))
    if ended is None and status in TERMINAL:
        # SageMaker sets no TrainingEndTime for a job that never got hosts.
        last_change = seconds_since_1970(description.get("LastModifiedTime"))
        ended = last_change or seconds_since_1970(description.get("CreationTime"))
    model = description.get("ModelArtifacts") or {}
    failure = failure_of(str(description.get("FailureReason") or "no reason was given")) if status == FAILED else None
    return {
        "status": status,
        "secondary_status": str(description["SecondaryStatus"]),
        "created": seconds_since_1970(description["CreationTime"]),
        "started": seconds_since_1970(description.get("TrainingStartTime")),
        "ended": ended,
        "failure": None if failure is None else failure.to_json(),
        # SageMaker reports the configured location for a failed job, too, where no model may exist.
        "model": (model.get("S3ModelArtifacts") or None) if status in (COMPLETED, STOPPED) else None,
        # The index is a file on disk, so `plain` masks secrets first.
        "description": json.dumps(plain(description)),
    }


def plain(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description as JSON values, with times in ISO format and secret-sounding values masked."""
    members = {name: value for name, value in description.items() if name != "ResponseMetadata"}
    for name, mask in (("Environment", masked), ("HyperParameters", masked_hyperparameters)):
        if name in members:
            members[name] = mask(members[name])
    values: dict[str, Any] = json.loads(json.dumps(members, default=_iso))
    return values


def seconds_since_1970(moment: Any) -> float | None:
    """Return a time of SageMaker's in seconds since 1970."""
    return moment.timestamp() if isinstance(moment, datetime) else moment


def failure_of(reason: str) -> Failure:
    """Parse a FailureReason: the text of Herringbone's supervisor into its parts, any other text as one message.

    >>> failure_of("AlgorithmError: rank 1 on algo-2: KeyError: x (exit code 1), exit code: 1").where
    'rank 1 on algo-2'
    >>> failure_of("CapacityError: Unable to provision requested ML compute capacity.").render()
    'the job: CapacityError: Unable to provision requested ML compute capacity.'
    """
    match = _REASON.fullmatch(reason)
    if match is None:
        return parse_summary(reason) or Failure(exit_code=0, message=reason)
    kind, text, code = match["kind"], match["text"], match["code"]
    # A failed container has an exit code other than 0, even where the reason does not state it. An error of the
    # platform has none.
    if kind == _CONTAINER_FAILED:
        return parse_summary(text) or Failure(exit_code=int(code or 1), exception=kind, message=text)
    return Failure(exit_code=int(code or 0), exception=kind, message=text)


def _iso(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"DescribeTrainingJob returned a {type(value).__name__}, which has no place in JSON")


class SubmissionState(enum.Enum):
    """State of a submission whose row still names a client."""

    CREATED = "SageMaker has the job"
    PREPARING = "the client is still preparing the job"
    NEVER_SENT = "the client ended before it created the job"
    TAKEN = "SageMaker has another job of that name"


def submission_state(
    record: JobRecord, description: Mapping[str, Any] | None, *, client_lives: bool
) -> SubmissionState:
    """Return the state of a submission, given SageMaker's description of its name (None: no such job).

    >>> submission_state(record, None, client_lives=False)       # doctest: +SKIP
    <SubmissionState.NEVER_SENT: 'the client ended before it created the job'>

    A row with a `client` claims its name: that process is about to create the job, or died before it could record that
    it had. A row without a client belongs to a job that was created.
    """
    if record.client is None:
        return SubmissionState.CREATED
    if description is not None:
        request = record.plan_dict.get("request") or {}
        return SubmissionState.TAKEN if differences(request, description) else SubmissionState.CREATED
    return SubmissionState.PREPARING if client_lives else SubmissionState.NEVER_SENT


def differences(request: Mapping[str, Any], description: Mapping[str, Any]) -> list[str]:
    """Return the members in which a described job differs from the request.

    >>> differences({"HyperParameters": {"epochs": "3"}, "Tags": []}, {"HyperParameters": {"epochs": "4"}})
    ['HyperParameters.epochs']

    Ignores members that SageMaker adds, members that it never describes (`Tags`), and masked values of the request.
    """
    return [
        path
        for name in request
        if name in description
        for path in _differing_paths(request[name], description[name], name)
    ]


def _differing_paths(requested: Any, described: Any, path: str) -> Iterator[str]:
    if isinstance(requested, Mapping) and isinstance(described, Mapping):
        for name, value in requested.items():
            yield from _differing_paths(value, described.get(name), f"{path}.{name}")
    elif isinstance(requested, list) and isinstance(described, list) and len(requested) == len(described):
        for number, (left, right) in enumerate(zip(requested, described, strict=True)):
            yield from _differing_paths(left, right, f"{path}[{number}]")
    # The index keeps requests with their secrets masked, so a mask may stand for any value.
    elif requested != described and not is_mask(requested):
        yield path
