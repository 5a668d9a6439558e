"""Create a training job, or a tuning job, exactly once, and look one up by name.

The request that creates it may succeed while its answer is lost. Its description then tells whether the job under the
name is the requested one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job that SageMaker knows: its word in messages, the member with its name, and boto's methods."""

    noun: str
    name_member: str
    create: str
    describe: str
    remedy: str


TRAINING_JOB = JobKind(
    noun="job",
    name_member="TrainingJobName",
    create="create_training_job",
    describe="describe_training_job",
    remedy="herringbone describe",
)
TUNING_JOB = JobKind(
    noun="tuning job",
    name_member="HyperParameterTuningJobName",
    create="create_hyper_parameter_tuning_job",
    describe="describe_hyper_parameter_tuning_job",
    remedy="herringbone tune show",
)


class UnknownOutcomeError(AwsUnavailableError):
    """The request was sent, and AWS cannot be asked whether it created the job.

    To fix: Look with `herringbone describe NAME` whether the job exists before you submit it again.
    """


def look_up(session: AwsSession, name: str, kind: JobKind = TRAINING_JOB) -> dict[str, Any] | None:
    """Return SageMaker's description of a job, None where account and region have no job of that name.

    >>> look_up(session, "digits-1")["TrainingJobStatus"]        # doctest: +SKIP
    'InProgress'
    """
    try:
        with session.explain_errors(f"to find {kind.noun} {name} in {session.region}"):
            describe = getattr(session.client("sagemaker"), kind.describe)
            description: dict[str, Any] = describe(**{kind.name_member: name})
    except AwsError as error:
        text = str(error).lower()
        unknown_job = error.code == "ValidationException" and any(phrase in text for phrase in _UNKNOWN_JOB_TEXTS)
        if unknown_job or error.code == "ResourceNotFound":
            return None
        raise
    return description


def create_job(
    session: AwsSession,
    request: Mapping[str, Any],
    kind: JobKind = TRAINING_JOB,
    *,
    pause: float = _OUTCOME_PAUSE_SECONDS,
) -> None:
    """Create a job, or find out that an earlier attempt of the same request has created it.

    >>> create_job(session, plan.request)            # doctest: +SKIP

    SageMaker refuses a second job of the same name, so a retry never starts the job twice. `pause` is in seconds.
    Raises `JobNameError` when another job has the name, `UnknownOutcomeError` when AWS stays unreachable, and other
    `AwsError`s when no job was created.
    """
    name = request[kind.name_member]
    try:
        with session.explain_errors(f"to create {kind.noun} {name}"):
            getattr(session.client("sagemaker"), kind.create)(**request)
    except AwsError as error:
        # boto retries by itself. If the first answer was lost, the retry finds the name in use by our own job.
        if not isinstance(error, AwsUnavailableError) and error.code != _NAME_IN_USE:
            raise
        description = _look_up_patiently(session, name, kind, error, pause)
        if description is None:
            raise
        if different_members := differences(request, description):
            raise name_taken_error(session, name, different_members, kind) from None


def was_created(
    session: AwsSession, name: str, kind: JobKind = TRAINING_JOB, *, pause: float = _ARRIVAL_SECONDS
) -> bool:
    """Return whether SageMaker has a job whose creation was interrupted.

    Looks twice, `pause` seconds apart, because the request may still be on its way.
    """
    if look_up(session, name, kind) is None:
        time.sleep(pause)
        return look_up(session, name, kind) is not None
    return True


def name_taken_error(
    session: AwsSession, name: str, different_members: list[str], kind: JobKind = TRAINING_JOB
) -> JobNameError:
    """Return the error for a name that another job has; it names the first of the `different_members`."""
    difference = f" (it differs in {different_members[0]})" if different_members else ""
    return JobNameError(
        f"{kind.noun} name {name!r} is taken in account {session.account}, region {session.region}{difference}; choose "
        "another, or leave it out to have one generated"
    )


def _look_up_patiently(
    session: AwsSession, name: str, kind: JobKind, error: AwsError, pause: float
) -> dict[str, Any] | None:
    for _ in range(_OUTCOME_ATTEMPTS):
        try:
            return look_up(session, name, kind)
        except AwsUnavailableError:
            time.sleep(pause)
    raise UnknownOutcomeError(
        f"{error}. It is unknown whether {kind.noun} {name} was created: run `{kind.remedy} {name}` once AWS answers "
        "again, before you submit the job a second time",
        code=error.code,
    )
