"""Jobs that SageMaker has: what becomes of them, read from the service and kept in the index."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.aws.session import AwsSession, ServicePlace
from herringbone.backends.sagemaker.bill import bill_of
from herringbone.backends.sagemaker.claim import Standing, standing
from herringbone.backends.sagemaker.credentials import renewed
from herringbone.backends.sagemaker.description import row_of
from herringbone.backends.sagemaker.fetch import fetch_model
from herringbone.backends.sagemaker.logs import CloudWatchLogs
from herringbone.backends.sagemaker.lookup import look_up
from herringbone.backends.sagemaker.price import Prices
from herringbone.backends.sagemaker.progress import Progress
from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.jobs.home import Home
from herringbone.jobs.index import STOPPING, JobIndex, JobRecord
from herringbone.jobs.lifecycle import client_lives, model_of, settle
from herringbone.jobs.logs import FileLogs
from herringbone.jobs.polling import Pace
from herringbone_contract.errors import (
    AwsAccessError,
    AwsError,
    JobNameError,
    JobNotFoundError,
    UnsupportedError,
)
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource


class SubmittedJobs:
    """The jobs of `home` that the service has; `sessions` are those of this process, by job.

    >>> SubmittedJobs(find_home(), {}, pace=Pace(2, 10, 1.2)).describe("digits-1").status        # doctest: +SKIP
    'Completed'

    A job is asked for at most once in the shortest pause of `pace`; in between its row answers.
    """

    def __init__(
        self,
        home: Home,
        sessions: dict[str, AwsSession],
        *,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._index = JobIndex(home.index)
        self._sessions = sessions
        self._pace = pace
        self._clock = clock
        self._asked: dict[str, float] = {}
        self._by_place: dict[str, AwsSession] = {}

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        asked = self._asked.get(name)
        if record.done or (asked is not None and self._clock() - asked < self._pace.shortest):
            return record
        described = None
        if record.service is not None:
            session = self._session(record)
            described = renewed(session, lambda: look_up(session, name))
        worth = standing(record, described, client_lives=client_lives(record))
        if worth is Standing.PREPARING:
            return record
        if worth is not Standing.CREATED:
            failure = Failure(exit_code=0, message=f"it was never created: {worth.value}")
            return settle(self._index, name, failure)
        if described is None:
            raise JobNotFoundError(self._missing(record))
        self._asked[name] = self._clock()
        return settle(self._index, name, {"client": None, **row_of(described)})

    def knows(self, name: str) -> bool:
        """Report whether the index has the job."""
        try:
            self._index.get(name)
        except JobNotFoundError:
            return False
        return True

    def find(self, name: str, session: AwsSession) -> None:
        """Take up a job that only the service knows: another machine sent it, or another program.

        Raises `JobNotFoundError`, and `AwsError`s.
        """
        described = renewed(session, lambda: look_up(session, name))
        if described is None:
            raise JobNotFoundError(f"no training job {name!r} in account {session.account}, region {session.region}")
        plan = rebuild(described, self._tags(session, described["TrainingJobArn"]))
        self._home.make()
        record = JobRecord(
            name=name,
            backend="sagemaker",
            plan=json.dumps(plan.to_dict()),
            service=session.place.to_json(),
            **row_of(described),
        )
        # Another process may have found it at the same moment.
        with contextlib.suppress(JobNameError):
            self._index.add(record)
        self._sessions[name] = session

    def logs(self, name: str) -> LogSource:
        record = self._index.get(name)
        if record.service is None:
            return FileLogs(())  # nothing of it was sent yet, or ever
        hosts = record.plan_dict["hosts"]
        return CloudWatchLogs(self._session(record), name, num_hosts=len(hosts), pace=self._pace)

    def stop(self, name: str, grace: float | None = None) -> None:
        if grace is not None:
            raise UnsupportedError(f"grace: SageMaker gives job {name} 120 s between SIGTERM and SIGKILL; leave it out")
        record = self.describe(name)
        if _is_ending(record):
            return
        if record.client is not None:
            raise UnsupportedError(f"job {name} is still being submitted; stop it there, or once it is created")
        session = self._session(record)

        def ask() -> None:
            with session.asking(f"to stop job {name}"):
                session.client("sagemaker").stop_training_job(TrainingJobName=name)

        try:
            renewed(session, ask)
        except AwsError as error:
            # It may have ended since it was looked at; then there is nothing to stop.
            self._asked.pop(name, None)
            if error.code != "ValidationException" or not _is_ending(self.describe(name)):
                raise
        self._asked.pop(name, None)

    def bill(self, name: str) -> str | None:
        record = self._index.get(name)
        if not record.done or record.description is None:
            return None
        prices = Prices(self._session(record), self._home.cache / "prices")
        bill = bill_of(json.loads(record.description), prices.hourly)
        return None if bill is None else f"job {name}: {bill}"

    def fetch_model(self, name: str, into: Path, *, progress: Progress) -> Path:
        record = self.describe(name)
        return fetch_model(self._session(record), model_of(record), into, progress=progress)

    def _session(self, record: JobRecord) -> AwsSession:
        session = self._sessions.get(record.name)
        if session is None:
            assert record.service is not None
            session = self._by_place.get(record.service)
            if session is None:
                session = self._by_place[record.service] = AwsSession.at(ServicePlace.from_json(record.service))
        return session

    def _tags(self, session: AwsSession, arn: str) -> list[dict[str, str]]:
        try:
            with session.asking("to read the job's tags"):
                pages = session.client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
                return [dict(tag) for page in pages for tag in page["Tags"]]
        except AwsAccessError:
            return []  # who may look at a job, but not at its tags, gets the rest of it

    def _missing(self, record: JobRecord) -> str:
        assert record.service is not None
        place = ServicePlace.from_json(record.service)
        session = self._session(record)
        here = f"job {record.name}: account {session.account} has no training job of that name in {session.region}"
        if session.account != place.account:
            return f"{here}; it was submitted in account {place.account}: use credentials of that account"
        return f"{here} any more"


def _is_ending(record: JobRecord) -> bool:
    return record.done or record.status == STOPPING
