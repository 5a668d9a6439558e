"""CreateTrainingJob, once: an answer that was lost is settled by asking what the service has under the name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.claim import differences
from herringbone.backends.sagemaker.lookup import look_up
from herringbone_contract.errors import AwsError, AwsUnavailableError, JobNameError

# How long the network may be away between a request and the question what came of it.
_LOOKS = 6
_LOOK_PAUSE_SECONDS = 5.0
_ARRIVAL_SECONDS = 2.0
_TAKEN = "ResourceInUse"


class UnknownOutcomeError(AwsUnavailableError):
    """The request went out, and nobody can be asked what came of it."""


def create_job(session: AwsSession, request: Mapping[str, Any], *, pause: float = _LOOK_PAUSE_SECONDS) -> None:
    """Create a training job, or find that an earlier try of the same request has done so.

    >>> create_job(session, plan.request)            # doctest: +SKIP

    The name is what keeps the service from starting it twice. Raises `JobNameError` when the name is another job's,
    `UnknownOutcomeError` when AWS cannot be reached for `pause` seconds, several times over, and other `AwsError`s
    when no job was created.
    """
    name = request["TrainingJobName"]
    try:
        with session.asking(f"to create job {name}"):
            session.client("sagemaker").create_training_job(**request)
    except AwsError as error:
        # Also "in use" may be an answer to our own second try, after the first one's answer was lost.
        if not isinstance(error, AwsUnavailableError) and error.code != _TAKEN:
            raise
        described = _settled(session, name, error, pause)
        if described is None:
            raise
        if differing := differences(request, described):
            raise taken(session, name, differing) from None


def was_created(session: AwsSession, name: str, *, pause: float = _ARRIVAL_SECONDS) -> bool:
    """Say whether the service has a job whose creation was interrupted: its request may be on its way for a moment."""
    if look_up(session, name) is None:
        time.sleep(pause)
        return look_up(session, name) is not None
    return True


def taken(session: AwsSession, name: str, differing: list[str]) -> JobNameError:
    """Return the error for a name that another job has at the service."""
    how = f" (it differs in {differing[0]})" if differing else ""
    return JobNameError(
        f"job name {name!r} is taken in account {session.account}, region {session.region}{how}; choose another, or "
        "leave it out to have one made"
    )


def _settled(session: AwsSession, name: str, error: AwsError, pause: float) -> dict[str, Any] | None:
    for _ in range(_LOOKS):
        try:
            return look_up(session, name)
        except AwsUnavailableError:
            time.sleep(pause)
    raise UnknownOutcomeError(
        f"{error}. Whether job {name} was created is not known: ask `herringbone describe {name}` once AWS answers "
        "again, before you submit it anew",
        code=error.code,
    )
