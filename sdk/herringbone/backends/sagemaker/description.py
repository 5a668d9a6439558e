"""What DescribeTrainingJob answers, as what a job's row holds. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from herringbone.jobs.index import COMPLETED, FAILED, STOPPED, TERMINAL
from herringbone_contract.constants import masked
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_summary
from herringbone_contract.masking import masked_hyperparameters

# "AlgorithmError: what the container left in /opt/ml/output/failure, exit code: 1"; other kinds end without a code.
_REASON = re.compile(r"(?P<kind>[A-Z][A-Za-z]+): (?P<text>.*?)(?:, exit code: (?P<code>\d+))?", re.DOTALL)
_FROM_THE_CONTAINER = "AlgorithmError"


def row_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a job's row that the service knows.

    >>> row_of({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Downloading", "CreationTime": 7.0})["created"]
    7.0

    Times are `datetime`s, as boto3 gives them, or seconds since 1970.
    """
    status = str(answer["TrainingJobStatus"])
    ended = seconds(answer.get("TrainingEndTime"))
    if ended is None and status in TERMINAL:
        # A job that never got hosts has no end of training.
        ended = seconds(answer.get("LastModifiedTime")) or seconds(answer.get("CreationTime"))
    model = answer.get("ModelArtifacts") or {}
    failure = failure_of(str(answer.get("FailureReason") or "no reason was given")) if status == FAILED else None
    return {
        "status": status,
        "secondary_status": str(answer["SecondaryStatus"]),
        "created": seconds(answer["CreationTime"]),
        "started": seconds(answer.get("TrainingStartTime")),
        "ended": ended,
        "failure": None if failure is None else failure.to_json(),
        "model": (model.get("S3ModelArtifacts") or None) if status in (COMPLETED, STOPPED) else None,
        "description": json.dumps(plain(answer)),
    }


def plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer as JSON's values, times in ISO form, secret-sounding values masked."""
    shown = {name: value for name, value in answer.items() if name != "ResponseMetadata"}
    for name, mask in (("Environment", masked), ("HyperParameters", masked_hyperparameters)):
        if name in shown:
            shown[name] = mask(shown[name])
    values: dict[str, Any] = json.loads(json.dumps(shown, default=_iso))
    return values


def seconds(moment: Any) -> float | None:
    """Return a time of the service's as seconds since 1970."""
    return moment.timestamp() if isinstance(moment, datetime) else moment


def failure_of(reason: str) -> Failure:
    """Return a FailureReason as a failure: our own text taken apart again, anybody else's whole.

    >>> failure_of("AlgorithmError: rank 1 on algo-2: KeyError: x (exit code 1), exit code: 1").where
    'rank 1 on algo-2'
    >>> failure_of("CapacityError: Unable to provision requested ML compute capacity.").render()
    'the job: CapacityError: Unable to provision requested ML compute capacity.'
    """
    found = _REASON.fullmatch(reason)
    if found is None:
        return parse_summary(reason) or Failure(exit_code=0, message=reason)
    kind, text, code = found["kind"], found["text"], found["code"]
    if kind == _FROM_THE_CONTAINER:
        return parse_summary(text) or Failure(exit_code=int(code or 1), exception=kind, message=text)
    return Failure(exit_code=int(code or 0), exception=kind, message=text)


def _iso(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"DescribeTrainingJob answered with a {type(value).__name__}")
