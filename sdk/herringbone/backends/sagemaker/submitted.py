"""Follow jobs that SageMaker has: read their state from the service and keep it in the index."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.aws.session import AwsLocation, AwsSession
from herringbone.backends.lifecycle import client_lives, model_of, settle
from herringbone.backends.sagemaker.creation import look_up
from herringbone.backends.sagemaker.description import SubmissionState, row_of, submission_state
from herringbone.backends.sagemaker.logs import CloudWatchLogs
from herringbone.backends.sagemaker.pricing import Prices, cost_of, kept_price, summarize_cost
from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.backends.sagemaker.transfer import fetch_artifact
from herringbone.backends.shown_logs import ShownLogs
from herringbone.plan.budget import dollars, hourly_of
from herringbone.records.home import Home
from herringbone.records.index import STOPPING, JobIndex, JobRecord
from herringbone.records.logs import FileLogs
from herringbone.system.polling import Pace
from herringbone.system.progress import Progress
from herringbone_contract.errors import (
    AwsAccessError,
    AwsError,
    InputError,
    JobNameError,
    JobNotFoundError,
    UnsupportedError,
)
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.protocols.backend import EventSource, LogSource
    from herringbone.records.download import Part


class SubmittedJobs:
    """The jobs of `home` that SageMaker has.

    >>> SubmittedJobs(find_home(), Progress(), pace=Pace(2, 10, 1.2)).describe("digits-1").status     # doctest: +SKIP
    'Completed'

    `describe` asks SageMaker at most once in the shortest pause of `pace`; between two requests the row answers.
    """

    def __init__(
        self,
        home: Home,
        progress: Progress,
        *,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._index = JobIndex(home.index)
        self._progress = progress
        # By job name. The user's own session may hold credentials that boto3's search would not find again.
        self._sessions: dict[str, AwsSession] = {}
        self.pace = pace
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._sessions_by_location: dict[str, AwsSession] = {}

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        asked_at = self._asked_at.get(name)
        if record.done or (asked_at is not None and self._clock() - asked_at < self.pace.shortest):
            return record
        description = None
        # Before the client has recorded its location, no request can have been sent.
        if record.service is not None:
            session = self._session(record)
            description = session.retry_with_new_credentials(lambda: look_up(session, name))
        state = submission_state(record, description, client_lives=client_lives(record))
        if state is SubmissionState.PREPARING:
            return record
        if state is not SubmissionState.CREATED:
            failure = Failure(exit_code=0, message=f"it was never created: {state.value}")
            return settle(self._index, name, failure)
        if description is None:
            raise JobNotFoundError(self._missing_message(record))
        self._asked_at[name] = self._clock()
        # `client=None` ends the claim of a client that died after it had created the job.
        return settle(self._index, name, {"client": None, **row_of(description)})

    def knows(self, name: str) -> bool:
        """Report whether the index has the job."""
        try:
            self._index.get(name)
        except JobNotFoundError:
            return False
        return True

    def add(self, name: str, session: AwsSession) -> None:
        """Add a job to the index that another machine, or another program, submitted.

        Raises `JobNotFoundError`, and `AwsError`s.
        """
        description = session.retry_with_new_credentials(lambda: look_up(session, name))
        if description is None:
            raise JobNotFoundError(f"no training job {name!r} in account {session.account}, region {session.region}")
        plan = rebuild(description, self._tags(session, description["TrainingJobArn"]))
        self._home.make()
        record = JobRecord(
            name=name,
            backend="sagemaker",
            plan=json.dumps(plan.to_dict()),
            service=session.location.to_json(),
            **row_of(description),
        )
        # Another process may have added the same job at the same moment.
        with contextlib.suppress(JobNameError):
            self._index.add(record)
        self._sessions[name] = session

    def logs(self, name: str) -> LogSource:
        return ShownLogs(self._lines(name))

    def _lines(self, name: str) -> LogSource:
        """Return the log with the events of supervisors among its lines."""
        record = self._index.get(name)
        if record.service is None:
            # The client has not sent a request yet, or died before it could.
            return FileLogs(())
        hosts = record.plan_dict["hosts"]
        return CloudWatchLogs(self._session(record), name, num_hosts=len(hosts), pace=self.pace)

    def events(self, name: str) -> EventSource:
        # Imported here: a job that is only submitted has no reader of events.
        from herringbone.backends.service_events import ServiceEvents

        return ServiceEvents(self._lines(name), lambda: self.describe(name), lambda: self.bill(name))

    def stop(self, name: str, grace: float | None = None) -> None:
        if grace is not None:
            raise UnsupportedError(f"grace: SageMaker gives job {name} 120 s between SIGTERM and SIGKILL; leave it out")
        record = self.describe(name)
        if _is_ending(record):
            return
        if record.client is not None:
            raise UnsupportedError(
                f"job {name} is still being submitted; stop it in the process that submits it, or once it is created"
            )
        session = self._session(record)

        def send() -> None:
            with session.explain_errors(f"to stop job {name}"):
                session.client("sagemaker").stop_training_job(TrainingJobName=name)

        try:
            session.retry_with_new_credentials(send)
        except AwsError as error:
            # SageMaker refuses to stop a job that has ended since `describe`. Forget when it was asked, so that the
            # next `describe` does not answer from the row.
            self._asked_at.pop(name, None)
            if error.code != "ValidationException" or not _is_ending(self.describe(name)):
                raise
        self._asked_at.pop(name, None)

    def cost(self, record: JobRecord) -> float | None:
        description = json.loads(record.description or "{}")
        now = record.ended or time.time()
        seconds = description.get("BillableTimeInSeconds", description.get("TrainingTimeInSeconds"))
        if seconds is None and record.started is not None:
            seconds = now - record.started
        cache = self._home.cache / "prices"
        hourly = hourly_of(record.plan_dict)
        if seconds is None or hourly is not None:
            return None if seconds is None or hourly is None else dollars(hourly, seconds)
        return cost_of(description, lambda name: kept_price(name, cache), seconds)

    def bill(self, name: str) -> str | None:
        record = self._index.get(name)
        if not record.done or record.description is None:
            return None
        prices = Prices(self._session(record), self._home.cache / "prices")
        summary = summarize_cost(json.loads(record.description), prices.hourly)
        return None if summary is None else f"job {name}: {summary}"

    def output_of(self, record: JobRecord) -> str | None:
        """Return the address of the job's packed output, which S3 has only if the script wrote any."""
        output = json.loads(record.description or "{}").get("OutputDataConfig") or {}
        # AWS documents no name for output that is not compressed.
        if not record.done or "S3OutputPath" not in output or output.get("CompressionType") == "NONE":
            return None
        return f"{output['S3OutputPath'].rstrip('/')}/{record.name}/output/output.tar.gz"

    def fetch(self, name: str, part: Part, into: Path) -> Path:
        record = self.describe(name)
        if part == "model":
            uri: str | None = model_of(record)
        elif part == "output":
            uri = self.output_of(record)
        else:
            uri = (json.loads(record.description or "{}").get("CheckpointConfig") or {}).get("S3Uri")
        if uri is None:
            raise InputError(
                f"job {name} is {record.status}, and SageMaker has no {part} of it at an address known here"
            )
        return fetch_artifact(self._session(record), uri, into, progress=self._progress, part=part)

    def _session(self, record: JobRecord) -> AwsSession:
        session = self._sessions.get(record.name)
        if session is None:
            assert record.service is not None
            session = self._sessions_by_location.get(record.service)
            if session is None:
                session = AwsSession.at(AwsLocation.from_json(record.service))
                self._sessions_by_location[record.service] = session
        return session

    def _tags(self, session: AwsSession, arn: str) -> list[dict[str, str]]:
        try:
            with session.explain_errors("to read the job's tags"):
                pages = session.client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
                return [dict(tag) for page in pages for tag in page["Tags"]]
        except AwsAccessError:
            # The permission to read tags is separate. Without it the rest of the job is still worth showing.
            return []

    def _missing_message(self, record: JobRecord) -> str:
        assert record.service is not None
        location = AwsLocation.from_json(record.service)
        session = self._session(record)
        message = f"job {record.name}: account {session.account} has no training job of that name in {session.region}"
        if session.account != location.account:
            return f"{message}; it was submitted in account {location.account}: use credentials of that account"
        return f"{message} any more"


def _is_ending(record: JobRecord) -> bool:
    return record.done or record.status == STOPPING
