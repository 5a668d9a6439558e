"""Read a job's log from CloudWatch: the streams of all hosts as one stream of lines.

A host has a stream, `<job>/algo-1-1763719200`, and one more after each restart. GetLogEvents returns a page and a token
for the next page; a token that comes back unchanged means that there is no more for now.

CloudWatch also reports when it last took in an event of a stream (`lastIngestionTime`), but by its own documentation up
to an hour late. So an old time there proves nothing, and every stream is polled on, with growing pauses while nothing
comes; a newer time only brings the next poll forward. A host that never falls silent would be polled without a pause.
So a page whose last event has only just come in counts as the last page for now.

`Streams` decides which stream to read next and in which order lines appear. It is pure: it sends no request.
`CloudWatchLogs` sends the requests.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone.records.logs import LogLine, marked_line
from herringbone.system.polling import Pace
from herringbone_contract.errors import AwsError

GROUP = "/aws/sagemaker/TrainingJobs"
_NO_GROUP_OR_STREAM = "ResourceNotFoundException"
_UNKNOWN_TOKEN = "InvalidParameterException"  # noqa: S105 - an error code
# Streams are listed again because a host that restarts writes to a new stream.
_RELIST_SECONDS = 30.0
# CloudWatch may deliver the last lines this late. After so many polls without a line, no more will come.
_LATE_SECONDS = 60.0
_QUIET_POLLS = 3
# An account may send 25 requests per second; one reader takes at most this many.
_REQUESTS_PER_SECOND = 5.0
# A page with at least this many events has more pages behind it, however fresh its last event is.
_LARGE_PAGE_EVENTS = 1_000
_FRESH_SECONDS = 5.0


@dataclass(slots=True)
class Stream:
    """The position in one stream, and the lines that wait for their turn.

    `due` and `pause` are in seconds of the caller's clock, `ingested` and `last_ms` in milliseconds since 1970.
    `num_at_last` counts the lines read with the timestamp `last_ms`; `skip` counts how many of them to drop when the
    service repeats them.
    """

    name: str
    host: str
    token: str | None = None
    drained: bool = False
    due: float = 0.0
    pause: float = 0.0
    ingested: int = 0
    last_ms: int | None = None
    num_at_last: int = 0
    skip: int = 0
    waiting: deque[LogLine] = field(default_factory=deque)


class Streams:
    """All streams of one job. Pure.

    >>> streams = Streams(Pace(2, 10, 1.5))
    >>> streams.update([{"logStreamName": "digits-1/algo-1-1763719200"}], now=0.0)
    >>> [stream.host for stream in streams.due(0.0)]
    ['algo-1']
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._streams: dict[str, Stream] = {}

    @property
    def hosts(self) -> set[str]:
        """The hosts that have a stream."""
        return {stream.host for stream in self._streams.values()}

    def update(self, entries: Iterable[Mapping[str, Any]], *, now: float) -> None:
        """Record streams as DescribeLogStreams lists them: new streams, and streams that have grown."""
        for entry in entries:
            name = entry["logStreamName"]
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = Stream(name, host_of(name), due=now, pause=self._pace.shortest)
            if (ingested := entry.get("lastIngestionTime", 0)) > stream.ingested:
                stream.ingested = ingested
                stream.due = min(stream.due, now)

    def due(self, now: float) -> list[Stream]:
        """Return the streams to read now, first those that have more pages."""
        # A stream with more pages holds back the lines of all others (see `take`), so it goes first.
        due = [stream for stream in self._streams.values() if not stream.drained or stream.due <= now]
        return sorted(due, key=lambda stream: (stream.drained, stream.due))

    def add_page(
        self,
        stream: Stream,
        events: Sequence[Mapping[str, Any]],
        token: str,
        *,
        now: float,
        served: float | None = None,
    ) -> None:
        """Add a page of events; `token` is for the next page.

        `served` is when the service sent the page, in seconds since 1970. None means to read on, however fresh the
        page is.
        """
        for event in events:
            stamp = event["timestamp"]
            if stream.skip and stamp == stream.last_ms:
                stream.skip -= 1
                continue
            stream.num_at_last = stream.num_at_last + 1 if stamp == stream.last_ms else 1
            stream.last_ms = stamp
            stream.waiting += lines_of(event, stream.host)
        stream.drained = token == stream.token or _ends_with_fresh_event(events, served)
        stream.token = token
        # A stream that just had lines is likely to get more.
        if events:
            stream.pause = self._pace.shortest
        if stream.drained:
            self._postpone(stream, now)

    def restart(self, stream: Stream) -> None:
        """Restart a stream at its last line, because the service forgot the token: it keeps one for a day."""
        stream.token = None
        stream.drained = False
        # The next page starts at the time `last_ms`, so it repeats the lines that were already read at that time.
        stream.skip = stream.num_at_last

    def mark_missing(self, stream: Stream, *, now: float) -> None:
        """Record that the service has no such stream, not yet or not any more."""
        stream.drained = True
        self._postpone(stream, now)

    def make_all_due(self) -> None:
        """Make every stream due at once."""
        for stream in self._streams.values():
            stream.due = 0.0

    def take(self) -> list[LogLine]:
        """Return the lines whose turn has come, sorted by time between hosts and in the stream's order within one.

        A stream with more pages holds back lines later than its own last line, so that even a log of hours comes out
        in order. A drained stream holds back nothing.
        """
        horizon = min((_read_up_to(stream) for stream in self._streams.values() if not stream.drained), default=None)
        return list(heapq.merge(*(_pop_until(stream.waiting, horizon) for stream in self._streams.values()), key=_time))

    def _postpone(self, stream: Stream, now: float) -> None:
        stream.due = now + stream.pause
        # With many streams the longest pause grows, so that all together stay below the request rate.
        longest = max(self._pace.longest, len(self._streams) / _REQUESTS_PER_SECOND)
        stream.pause = min(stream.pause * self._pace.slower, longest)


def host_of(stream_name: str) -> str:
    """Return the host that writes a stream.

    >>> host_of("digits-1/algo-12-1763719200")
    'algo-12'
    """
    host, _, start = stream_name.rpartition("/")[2].rpartition("-")
    return host if start.isdigit() and host.rpartition("-")[2].isdigit() else stream_name.rpartition("/")[2]


def lines_of(event: Mapping[str, Any], host: str) -> list[LogLine]:
    """Return the lines of an event; lines with our supervisor's prefix have a rank, other lines have none."""
    stamp = datetime.fromtimestamp(event["timestamp"] / 1_000, timezone.utc)
    lines = []
    for text in event["message"].rstrip("\n").split("\n"):
        lines.append(marked_line(text.encode("utf-8", "replace"), host, stamp))
    return lines


def _ends_with_fresh_event(events: Sequence[Mapping[str, Any]], served: float | None) -> bool:
    if served is None or not 0 < len(events) < _LARGE_PAGE_EVENTS:
        return False
    ingested: int = events[-1].get("ingestionTime", 0)
    return served - ingested / 1_000 < _FRESH_SECONDS


def _read_up_to(stream: Stream) -> datetime:
    # A stream that has not been read yet holds back the lines of all others.
    seconds = 0.0 if stream.last_ms is None else stream.last_ms / 1_000
    return datetime.fromtimestamp(seconds, timezone.utc)


def _pop_until(waiting: deque[LogLine], horizon: datetime | None) -> list[LogLine]:
    lines = []
    while waiting and (horizon is None or waiting[0].time <= horizon):
        lines.append(waiting.popleft())
    return lines


def _time(line: LogLine) -> datetime:
    return line.time


class CloudWatchLogs:
    """The log of one job with `num_hosts` hosts, as a `LogSource`.

    >>> CloudWatchLogs(session, "digits-1", num_hosts=2, pace=Pace(2, 10, 1.2)).read()       # doctest: +SKIP

    A group or a stream that does not exist yet has no lines yet. Failures raise an `AwsError`; the next `read` resumes
    at the same position, so no line is lost or repeated.
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
        self._job_ended = False

    def read(self) -> list[LogLine]:
        now = self._clock()
        try:
            if now >= self._list_at:
                self._list(now)
            # Each round reads one page of every due stream, so that all hosts advance together and lines can be merged.
            while due := self._streams.due(now):
                for stream in due:
                    self._read_page(stream, now)
                if lines := self._streams.take():
                    return lines
        except AwsError:
            # Return the complete lines first. The caller's next `read` meets the same error again.
            if lines := self._streams.take():
                return lines
            raise
        return self._streams.take()

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:
        self._job_ended = True
        all_arrived = ended is not None and time.time() - ended > _LATE_SECONDS
        quiet_polls, enough = 0, 1 if all_arrived else _QUIET_POLLS
        while True:
            self._streams.make_all_due()
            # List the streams again: a host that restarted shortly before the end has a new one.
            self._list_at = 0.0
            quiet_polls += 1
            while lines := self.read():
                # New lines may be followed by more, unless the job ended so long ago that all have arrived.
                quiet_polls = 0 if not all_arrived else quiet_polls
                yield lines
            if quiet_polls >= enough:
                return
            time.sleep(self._pace.shortest)

    def close(self) -> None:
        """Do nothing: the session owns the client."""

    def _list(self, now: float) -> None:
        arguments: dict[str, Any] = {"logGroupName": GROUP, "logStreamNamePrefix": f"{self._job}/"}
        while True:
            try:
                page = self._call("describe_log_streams", f"to list the log streams of job {self._job}", arguments)
            except AwsError as error:
                if error.code != _NO_GROUP_OR_STREAM:
                    raise
                # The group does not exist before a first job of the account has written a line.
                page = {}
            self._streams.update(page.get("logStreams", ()), now=now)
            if not page.get("nextToken"):
                break
            arguments["nextToken"] = page["nextToken"]
        # Until every host has a stream, a new one may appear at any moment.
        complete = len(self._streams.hosts) >= self._num_hosts
        self._list_at = now + (_RELIST_SECONDS if complete else self._pace.shortest)

    def _read_page(self, stream: Stream, now: float) -> None:
        arguments = {"logGroupName": GROUP, "logStreamName": stream.name, "startFromHead": True}
        if stream.token is not None:
            arguments["nextToken"] = stream.token
        elif stream.last_ms is not None:
            arguments["startTime"] = stream.last_ms
        try:
            page = self._call("get_log_events", f"to read the log of {stream.host} of job {self._job}", arguments)
        except AwsError as error:
            if error.code == _UNKNOWN_TOKEN and stream.token is not None:
                self._streams.restart(stream)
            elif error.code == _NO_GROUP_OR_STREAM:
                self._streams.mark_missing(stream, now=now)
            else:
                raise
            return
        # Nobody writes to the log of a job that has ended, so its pages are read to the last, however fresh they are.
        served = None if self._job_ended else _served_at(page)
        self._streams.add_page(stream, page["events"], page["nextForwardToken"], now=now, served=served)

    def _call(self, operation: str, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        def send() -> dict[str, Any]:
            with self._session.explain_errors(action):
                answer: dict[str, Any] = getattr(self._session.client("logs"), operation)(**arguments)
            return answer

        return self._session.retry_with_new_credentials(send)


def _served_at(page: dict[str, Any]) -> float | None:
    """Return when the service sent an answer, by the service's clock: this machine's clock may be wrong."""
    date = page["ResponseMetadata"]["HTTPHeaders"].get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp()
