"""The service's answer about one job, or that it has none of that name."""

from __future__ import annotations

from typing import Any

from herringbone.aws.session import AwsSession
from herringbone_contract.errors import AwsError

# DescribeTrainingJob has no error of its own for this; the text tells it from a malformed question.
_ABSENT = ("not found", "could not find", "does not exist")


def look_up(session: AwsSession, name: str) -> dict[str, Any] | None:
    """Return what DescribeTrainingJob says of a job, None when there is none in that account and region.

    >>> look_up(session, "digits-1")["TrainingJobStatus"]        # doctest: +SKIP
    'InProgress'
    """
    try:
        with session.asking(f"to find job {name} in {session.region}"):
            answer: dict[str, Any] = session.client("sagemaker").describe_training_job(TrainingJobName=name)
    except AwsError as error:
        absent = error.code == "ValidationException" and any(text in str(error).lower() for text in _ABSENT)
        if absent or error.code == "ResourceNotFound":
            return None
        raise
    return answer
