"""A job's log, read from CloudWatch: all hosts as one stream of lines. What is read next is streams.py's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.credentials import renewed
from herringbone.backends.sagemaker.streams import Stream, Streams
from herringbone.jobs.logs import LogLine
from herringbone.jobs.polling import Pace
from herringbone_contract.errors import AwsError

GROUP = "/aws/sagemaker/TrainingJobs"
_NOT_THERE = "ResourceNotFoundException"
_UNKNOWN_TOKEN = "InvalidParameterException"  # noqa: S105 - an error's code
# A host that starts again writes to a new stream.
_RELIST_SECONDS = 30.0
# How late the last lines of a job may come, and how many looks without a line show that there are no more.
_LATE_SECONDS = 60.0
_QUIET_LOOKS = 3


class CloudWatchLogs:
    """The log of one job with `num_hosts` hosts, as a `LogSource`.

    >>> CloudWatchLogs(session, "digits-1", num_hosts=2, pace=Pace(2, 10, 1.2)).read()       # doctest: +SKIP

    A group or a stream that is not there yet has no lines yet. What fails raises an `AwsError`; the next `read` goes on
    where that one was, and no line is lost or given twice.
    """

    def __init__(
        self,
        session: AwsSession,
        job: str,
        *,
        num_hosts: int,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._job = job
        self._num_hosts = num_hosts
        self._pace = pace
        self._clock = clock
        self._streams = Streams(pace)
        self._list_at = 0.0
        self._is_over = False

    def read(self) -> list[LogLine]:
        now = self._clock()
        try:
            if now >= self._list_at:
                self._list(now)
            while due := self._streams.due(now):
                for stream in due:
                    self._read_page(stream, now)
                if lines := self._streams.take():
                    return lines
        except AwsError:
            # First what is whole; who asks again meets the error again.
            if lines := self._streams.take():
                return lines
            raise
        return self._streams.take()

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:
        self._is_over = True
        late = ended is not None and time.time() - ended > _LATE_SECONDS
        quiet, enough = 0, 1 if late else _QUIET_LOOKS
        while True:
            self._streams.wake()
            self._list_at = 0.0
            quiet += 1
            while lines := self.read():
                quiet = 0 if not late else quiet
                yield lines
            if quiet >= enough:
                return
            time.sleep(self._pace.shortest)

    def close(self) -> None:
        """Nothing is held: clients are the session's."""

    def _list(self, now: float) -> None:
        question: dict[str, Any] = {"logGroupName": GROUP, "logStreamNamePrefix": f"{self._job}/"}
        while True:
            try:
                page = self._ask("describe_log_streams", f"to list the log streams of job {self._job}", question)
            except AwsError as error:
                if error.code != _NOT_THERE:
                    raise
                page = {}
            self._streams.found(page.get("logStreams", ()), now=now)
            if not page.get("nextToken"):
                break
            question["nextToken"] = page["nextToken"]
        complete = len(self._streams.hosts) >= self._num_hosts
        self._list_at = now + (_RELIST_SECONDS if complete else self._pace.shortest)

    def _read_page(self, stream: Stream, now: float) -> None:
        question = {"logGroupName": GROUP, "logStreamName": stream.name, "startFromHead": True}
        if stream.token is not None:
            question["nextToken"] = stream.token
        elif stream.last_ms is not None:
            question["startTime"] = stream.last_ms
        try:
            page = self._ask("get_log_events", f"to read the log of {stream.host} of job {self._job}", question)
        except AwsError as error:
            if error.code == _UNKNOWN_TOKEN and stream.token is not None:
                self._streams.forgotten(stream)
            elif error.code == _NOT_THERE:
                self._streams.gone(stream, now=now)
            else:
                raise
            return
        # Of a job that is over nothing more is written: there each page is read to the last.
        served = None if self._is_over else _served(page)
        self._streams.took(stream, page["events"], page["nextForwardToken"], now=now, served=served)

    def _ask(self, call: str, what: str, question: dict[str, Any]) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            with self._session.asking(what):
                answer: dict[str, Any] = getattr(self._session.client("logs"), call)(**question)
            return answer

        return renewed(self._session, ask)


def _served(page: dict[str, Any]) -> float | None:
    """Return when the service sent an answer, by its own clock: this machine's may be wrong."""
    date = page["ResponseMetadata"]["HTTPHeaders"].get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()
