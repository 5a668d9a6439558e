"""Submit a tuning job to SageMaker: from the plans of its trials to a job that SageMaker has.

check the request offline -> claim the name here, with the location
-> credentials, role, name, image, buckets, code, data (`prepare`, which changes nothing) -> request checked again
-> upload what is missing -> create the job
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.creation import TUNING_JOB, UnknownOutcomeError, create_job, was_created
from herringbone.backends.sagemaker.request import AccountNames, example_names, training_job_request
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.backends.sagemaker.submission import Preparation, prepare, upload
from herringbone.plan.plan import JobPlan
from herringbone.records.home import find_home
from herringbone.system.progress import Progress
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.service.request import TuningPart, TuningSettings, tuning_request
from herringbone.tuner.service.tuning import ServiceRecord, ServiceTuning, claim_folder, release_folder
from herringbone_contract.errors import AwsError, HerringboneError

_OPERATION = "CreateHyperParameterTuningJob"


class PlannedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one estimator: what is searched, and the plan of a trial without the tuned hyperparameters.

    `name` is the name of one of several estimators; None where there is one.
    """

    definition: TuningDefinition
    plan: JobPlan
    name: str | None = None

    def with_request(self, request: Mapping[str, Any]) -> TuningPart:
        return TuningPart(
            definition=self.definition, request=dict(request), estimator=self.plan.estimator, name=self.name
        )


def planned_request(
    parts: Sequence[PlannedPart], settings: TuningSettings | None = None, *, loader: Any = None
) -> dict[str, Any]:
    """Return the CreateHyperParameterTuningJob request, with `${...}` for what only the account knows; no network.

    >>> planned_request([PlannedPart(definition=definition, plan=plan)])["Tags"]        # doctest: +SKIP

    Checks the request against SageMaker's service model, as the plan of a training job does. `loader` is a session's
    loader of service models. Raises `UnsupportedError` and `OptionError`.
    """
    examples = [part.with_request(training_job_request(part.plan, example_names(part.plan))) for part in parts]
    check_request(tuning_request(examples, settings), loader, operation=_OPERATION)
    plain = [part.with_request(training_job_request(part.plan, AccountNames())) for part in parts]
    return tuning_request(plain, settings)


def submit_tuning(
    parts: Sequence[PlannedPart], settings: TuningSettings | None = None, *, folder: Path
) -> ServiceTuning:
    """Upload what the trials need, create the tuning job exactly once, and return its handle.

    >>> submit_tuning([PlannedPart(definition=definition, plan=plan)], folder=folder).wait()         # doctest: +SKIP

    `folder` is the tuning job's own, which must not exist yet; it gets the location of the job, so that another process
    finds it. After an error it is gone, and only uploaded objects remain, with one exception: where nobody knows
    whether the job was created, the folder stays. Raises `UsageError`, and `AwsError`s.
    """
    aws_session = AwsSession.of(parts[0].plan.options.sagemaker_session)
    planned_request(parts, settings, loader=aws_session.loader)
    progress = Progress()
    name = parts[0].definition.name
    record = ServiceRecord(definition=parts[0].definition, location=aws_session.location, created=time.time())
    claim_folder(folder, record)
    with _Outcome(name, aws_session, folder, progress).settled() as outcome:
        with tempfile.TemporaryDirectory(prefix="herringbone-") as scratch:
            prepared = _prepared(parts, aws_session, Path(scratch), progress)
            filled = [part.with_request(one.request) for part, one in zip(parts, prepared, strict=True)]
            request = tuning_request(filled, settings)
            check_request(request, aws_session.loader, operation=_OPERATION)
            for part, one in zip(parts, prepared, strict=True):
                upload(one, part.plan, aws_session, progress)
        # Set before the call, because an interruption during the call leaves the outcome open.
        outcome.request_sent = True
        create_job(aws_session, request, TUNING_JOB)
    progress.say(f"tuning job {name} created in {aws_session.region}")
    return ServiceTuning(name, aws_session)


def _prepared(
    parts: Sequence[PlannedPart], session: AwsSession, scratch: Path, progress: Progress
) -> list[Preparation]:
    prepared: list[Preparation] = []
    for number, part in enumerate(parts):
        # One archive has the same file name as the next.
        place = scratch / str(number)
        place.mkdir()
        one = prepare(
            part.plan,
            session,
            place,
            # The request of a trial is checked as a part of the tuning job's.
            check=lambda *_: None,
            exclude=find_home().path,
            say=progress.say,
            kind=TUNING_JOB,
        )
        # The first part creates the default bucket for all.
        if any(earlier.missing_bucket == one.missing_bucket for earlier in prepared):
            one = msgspec.structs.replace(one, missing_bucket=None)
        prepared.append(one)
    return prepared


class _Outcome:
    """Decides after an error whether the folder of the tuning job stays."""

    def __init__(self, name: str, session: AwsSession, folder: Path, progress: Progress) -> None:
        self._name = name
        self._session = session
        self._folder = folder
        self._say = progress.say
        self.request_sent = False

    @contextmanager
    def settled(self) -> Iterator[_Outcome]:
        try:
            yield self
        except UnknownOutcomeError:
            raise
        except HerringboneError:
            release_folder(self._folder)
            raise
        except BaseException:
            # Ctrl-C, a full disk, or a defect in this program: the request may have been sent.
            if not self.request_sent or not self._may_exist():
                release_folder(self._folder)
            raise

    def _may_exist(self) -> bool:
        """Ask whether an interrupted submission created the job, and report it; True also when nobody knows."""
        name = self._name
        self._say(f"asking whether tuning job {name} was created; a second Ctrl-C leaves that open")
        try:
            created = was_created(self._session, name, TUNING_JOB)
        except (KeyboardInterrupt, AwsError):
            self._say(f"tuning job {name} may have been created: run `herringbone tune show {name}` to find out")
            return True
        self._say(
            f"tuning job {name} was created, and runs: `herringbone tune show {name}`, `herringbone tune stop {name}`"
            if created
            else f"tuning job {name} was not created"
        )
        return created
