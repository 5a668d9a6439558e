"""Create a training job exactly once, and look up a job by name.

CreateTrainingJob may succeed while its answer is lost. DescribeTrainingJob then tells whether the job under the name is
the requested one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.description import differences
from herringbone_contract.errors import AwsError, AwsUnavailableError, JobNameError

# DescribeTrainingJob has one error code for an unknown job and for a malformed request; only the text differs.
_UNKNOWN_JOB_TEXTS = ("not found", "could not find", "does not exist")
# How often, and how many seconds apart, `create_job` asks for the outcome while the network is down.
_OUTCOME_ATTEMPTS = 6
_OUTCOME_PAUSE_SECONDS = 5.0
_ARRIVAL_SECONDS = 2.0
_NAME_IN_USE = "ResourceInUse"


class UnknownOutcomeError(AwsUnavailableError):
    """The request was sent, and AWS cannot be asked whether it created the job.

    To fix: Look with `herringbone describe NAME` whether the job exists before you submit it again.
    """


def look_up(session: AwsSession, name: str) -> dict[str, Any] | None:
    """Return DescribeTrainingJob's answer for a job, None where account and region have no job of that name.

    >>> look_up(session, "digits-1")["TrainingJobStatus"]        # doctest: +SKIP
    'InProgress'
    """
    try:
        with session.explain_errors(f"to find job {name} in {session.region}"):
            description: dict[str, Any] = session.client("sagemaker").describe_training_job(TrainingJobName=name)
    except AwsError as error:
        text = str(error).lower()
        unknown_job = error.code == "ValidationException" and any(phrase in text for phrase in _UNKNOWN_JOB_TEXTS)
        if unknown_job or error.code == "ResourceNotFound":
            return None
        raise
    return description


def create_job(session: AwsSession, request: Mapping[str, Any], *, pause: float = _OUTCOME_PAUSE_SECONDS) -> None:
    """Create a training job, or find out that an earlier attempt of the same request has created it.

    >>> create_job(session, plan.request)            # doctest: +SKIP

    SageMaker refuses a second job of the same name, so a retry never starts the job twice. `pause` is in seconds.
    Raises `JobNameError` when another job has the name, `UnknownOutcomeError` when AWS stays unreachable, and other
    `AwsError`s when no job was created.
    """
    name = request["TrainingJobName"]
    try:
        with session.explain_errors(f"to create job {name}"):
            session.client("sagemaker").create_training_job(**request)
    except AwsError as error:
        # boto retries by itself. If the first answer was lost, the retry finds the name in use by our own job.
        if not isinstance(error, AwsUnavailableError) and error.code != _NAME_IN_USE:
            raise
        description = _look_up_patiently(session, name, error, pause)
        if description is None:
            raise
        if different_members := differences(request, description):
            raise name_taken_error(session, name, different_members) from None


def was_created(session: AwsSession, name: str, *, pause: float = _ARRIVAL_SECONDS) -> bool:
    """Return whether SageMaker has a job whose creation was interrupted.

    Looks twice, `pause` seconds apart, because the request may still be on its way.
    """
    if look_up(session, name) is None:
        time.sleep(pause)
        return look_up(session, name) is not None
    return True


def name_taken_error(session: AwsSession, name: str, different_members: list[str]) -> JobNameError:
    """Return the error for a name that another job has; it names the first of the `different_members`."""
    difference = f" (it differs in {different_members[0]})" if different_members else ""
    return JobNameError(
        f"job name {name!r} is taken in account {session.account}, region {session.region}{difference}; choose "
        "another, or leave it out to have one generated"
    )


def _look_up_patiently(session: AwsSession, name: str, error: AwsError, pause: float) -> dict[str, Any] | None:
    for _ in range(_OUTCOME_ATTEMPTS):
        try:
            return look_up(session, name)
        except AwsUnavailableError:
            time.sleep(pause)
    raise UnknownOutcomeError(
        f"{error}. It is unknown whether job {name} was created: run `herringbone describe {name}` once AWS answers "
        "again, before you submit the job a second time",
        code=error.code,
    )
