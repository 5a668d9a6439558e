"""Follow a tuning job that SageMaker has: its state, its trials, its end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from herringbone.aws.session import AwsLocation, AwsSession
from herringbone.backends.sagemaker.creation import TUNING_JOB, look_up
from herringbone.backends.sagemaker.description import seconds_since_1970
from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.backends.watch import ACCESS_PATIENCE_SECONDS
from herringbone.plan.plan import JobPlan
from herringbone.records.index import TERMINAL
from herringbone.show.console import Console
from herringbone.system.polling import Pace, Pauses
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import TuningLook, trial_line
from herringbone.tuner.service.description import (
    definition_of,
    kept_static,
    plain_description,
    training_description,
    trial_records,
)
from herringbone.tuner.store import TrialRecord
from herringbone_contract.errors import (
    AwsAccessError,
    AwsError,
    JobNameError,
    JobNotFoundError,
    OptionError,
    ServiceError,
    TuningFailedError,
    UnsupportedError,
)
from herringbone_contract.files import sync, write_whole
from herringbone_contract.masking import masked_hyperparameters

# One look takes two requests, and a trial takes minutes.
PACE = Pace(shortest=5.0, longest=30.0, slower=1.5, jitter=0.25)
_PAGE = 100
_STATUS = "HyperParameterTuningJobStatus"
_FILE = "service.json"


class ServiceTuning:
    """One tuning job of SageMaker, by its name; see `herringbone.tuner.tuning.Tuning`.

    >>> ServiceTuning("digits", AwsSession.of(None)).describe()["HyperParameterTuningJobStatus"]     # doctest: +SKIP
    'Completed'

    Between two looks that are less than the shortest pause of `pace` apart, the first answer counts. All methods raise
    `AwsError`s, and `JobNotFoundError` for a name that SageMaker does not know.
    """

    def __init__(
        self,
        name: str,
        session: AwsSession,
        *,
        pace: Pace = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._session = session
        self._pace = pace
        self._clock = clock
        self._description: Mapping[str, Any] | None = None
        self._asked_at = 0.0

    def describe(self) -> dict[str, Any]:
        """Return SageMaker's description as plain JSON, with times in ISO format and secrets masked."""
        return plain_description(self._describe())

    def definition(self) -> TuningDefinition:
        """Return what was asked for; of several estimators, all of their ranges."""
        return definition_of(self._describe())

    @property
    def keep_static(self) -> tuple[str, ...] | None:
        """The hyperparameters for which autotune finds no range; None without autotune."""
        return kept_static(self._describe())

    def trials(self) -> list[TrialRecord]:
        """Return the trials so far, in the order of their numbers."""
        return trial_records(self.training_job_summaries(), self._describe())

    def look(self) -> TuningLook:
        """Return the search at this moment."""
        description = self._describe()
        return TuningLook(
            definition=definition_of(description),
            trials=self.trials(),
            status=description[_STATUS],
            backend="sagemaker",
            created=seconds_since_1970(description["CreationTime"]) or 0.0,
            ended=seconds_since_1970(description.get("HyperParameterTuningEndTime")),
            reason=description.get("FailureReason"),
        )

    def training_job_summaries(self) -> list[dict[str, Any]]:
        """Return SageMaker's summaries of all trials, from all pages."""

        def read() -> list[dict[str, Any]]:
            with self._session.explain_errors(f"to list the trials of tuning job {self.name}"):
                client = self._session.client("sagemaker")
                paginator = client.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job")
                pages = paginator.paginate(HyperParameterTuningJobName=self.name, PaginationConfig={"PageSize": _PAGE})
                return [dict(summary) for page in pages for summary in page["TrainingJobSummaries"]]

        return self._session.retry_with_new_credentials(read)

    @property
    def boto(self) -> Any:
        """The `boto3.Session` that reaches the tuning job."""
        return self._session.boto

    def estimator_plan(self) -> JobPlan:
        """Return the plan of a trial without tuned hyperparameters; its arguments and options make the estimator."""
        description = self._describe()
        tags = self._tags(description["HyperParameterTuningJobArn"])
        return rebuild(training_description(description), tags)

    def stop(self) -> None:
        """Ask SageMaker to stop the search and its running trials, and return."""
        if self._describe(fresh=True)[_STATUS] in (*TERMINAL, "Stopping"):
            return

        def send() -> None:
            with self._session.explain_errors(f"to stop tuning job {self.name}"):
                client = self._session.client("sagemaker")
                client.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName=self.name)

        try:
            self._session.retry_with_new_credentials(send)
        except AwsError as error:
            # SageMaker refuses to stop a job that has ended since it was described.
            ended = error.code == "ValidationException" and self._describe(fresh=True)[_STATUS] in TERMINAL
            if not ended:
                raise
        self._description = None

    def wait(self, say: Callable[[str], None] | None = None, timeout: float | None = None) -> None:
        """Return when the search is over; `say` gets a line for each trial that is over.

        An error that may pass is reported once on standard error, and the wait goes on. Raises `TuningFailedError` when
        the search failed, `TimeoutError` after `timeout` seconds.
        """
        deadline = None if timeout is None else self._clock() + timeout
        pauses, shown = Pauses(self._pace), set[str]()
        outages = _Outages(self.name, self._clock)
        while True:
            try:
                description = self._describe(fresh=True)
                if say is not None:
                    self._tell(say, description, shown, pauses)
            except ServiceError as error:
                outages.report(error)
            else:
                outages.end()
                if description[_STATUS] in TERMINAL:
                    break
            if deadline is not None and self._clock() > deadline:
                raise TimeoutError(f"tuning job {self.name} is not over after {timeout} s; it goes on")
            time.sleep(pauses.next())
        if description[_STATUS] == "Failed":
            raise TuningFailedError(self.name, str(description.get("FailureReason") or "no reason was given"))

    def _tell(
        self, say: Callable[[str], None], description: Mapping[str, Any], shown: set[str], pauses: Pauses
    ) -> None:
        """Say a line for each trial that is over and was not `shown` yet."""
        definition = definition_of(description)
        for record in trial_records(self.training_job_summaries(), description):
            if record.done and record.job not in shown:
                shown.add(record.job)
                pauses.reset()
                say(trial_line(definition, record))

    def _describe(self, *, fresh: bool = False) -> Mapping[str, Any]:
        """Return SageMaker's own answer, with its secrets."""
        known = self._description
        if known is not None and (
            known[_STATUS] in TERMINAL or (not fresh and self._clock() - self._asked_at < self._pace.shortest)
        ):
            return known
        session = self._session
        description = session.retry_with_new_credentials(lambda: look_up(session, self.name, TUNING_JOB))
        if description is None:
            raise JobNotFoundError(f"no tuning job {self.name!r} in account {session.account}, region {session.region}")
        self._description, self._asked_at = description, self._clock()
        return description

    def _tags(self, arn: str) -> list[dict[str, str]]:
        try:
            with self._session.explain_errors("to read the tuning job's tags"):
                pages = self._session.client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
                return [dict(tag) for page in pages for tag in page["Tags"]]
        except AwsAccessError:
            # The permission to read tags is separate. Without it the rest of the job is still worth showing.
            return []


def attach_tuning(name: str, session: object = None, folder: Path | None = None) -> ServiceTuning:
    """Return the handle of a tuning job that SageMaker has, submitted by any program.

    >>> attach_tuning("digits").describe()["HyperParameterTuningJobStatus"]           # doctest: +SKIP
    'InProgress'

    `session` is a value of the option `sagemaker_session`. Without it, the location in `folder` counts, the folder that
    `submit_tuning` had; without both, boto3 finds credentials and region. Raises `JobNotFoundError` when there is no
    such job, or SageMaker cannot be asked.
    """
    record = None if folder is None or session is not None else read_record(folder)
    try:
        tuning = ServiceTuning(name, AwsSession.of(session) if record is None else AwsSession.at(record.location))
        # Reads the region and asks for the job, so that a wrong name shows here.
        tuning.describe()
    except (UnsupportedError, OptionError) as error:
        raise JobNotFoundError(f"SageMaker was not asked: {error}") from None
    except AwsError as error:
        raise JobNotFoundError(f"SageMaker could not be asked for tuning job {name!r}: {error}") from error
    return tuning


class _Outages:
    """Decides on errors during a wait: reports one that may pass once, and raises all others."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._stderr = Console(sys.stderr)
        self._answered = False
        self._reported: ServiceError | None = None
        self._denied_since: float | None = None

    def report(self, error: ServiceError) -> None:
        # At the first question the user is still there and can act on the error.
        if not (self._answered if error.transient else error.denied):
            raise error
        if error.denied:
            now = self._clock()
            self._denied_since = now if self._denied_since is None else self._denied_since
            if now - self._denied_since >= ACCESS_PATIENCE_SECONDS:
                raise error
        if self._reported is None:
            self._reported = error
            self._stderr.say(f"{error}. The wait for tuning job {self._name} goes on")

    def end(self) -> None:
        self._answered, self._denied_since = True, None
        if self._reported is not None:
            self._stderr.say(f"{self._reported.service} answers again: tuning job {self._name}")
            self._reported = None


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of service.json: the definition without secrets, and where the tuning job is.

    `created` is in seconds since 1970.
    """

    definition: TuningDefinition
    location: AwsLocation
    created: float


def claim_folder(folder: Path, record: ServiceRecord) -> None:
    """Write the record into a new folder. Raises `JobNameError` where the folder belongs to a tuning job already."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise JobNameError(
            f"tuning job name {folder.name!r} is taken on this machine; choose another, or leave it out to get a "
            "generated one"
        ) from None
    definition = msgspec.structs.replace(record.definition, static=masked_hyperparameters(record.definition.static))
    content = msgspec.json.encode(msgspec.structs.replace(record, definition=definition))
    write_whole(folder / _FILE, content, synced=True)
    sync(folder.parent)


def release_folder(folder: Path) -> None:
    """Remove the folder of a tuning job that was never created."""
    with contextlib.suppress(OSError):
        (folder / _FILE).unlink()
        folder.rmdir()


def read_record(folder: Path) -> ServiceRecord | None:
    """Return what `claim_folder` wrote; None where there is none, or one of another release.

    >>> read_record(find_home().tuning("digits")).location.region        # doctest: +SKIP
    'eu-west-1'
    """
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=ServiceRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
