"""Which of a job's CloudWatch streams to read next, and its lines in order. Pure: no request is sent here.

A host has a stream, `<job>/algo-1-1763719200`, and after a restart one more. GetLogEvents gives a page and a token for
the next; a token that comes back unchanged says that there is no more for now.

The service also tells when it last took something in for a stream (`lastIngestionTime`), but late, by an hour in its
own words, so that silence there proves nothing. Hence each stream is read on, more and more rarely while nothing comes;
a newer time only ever brings a look forward. And a host that never falls silent would be asked without a pause: a page
that ends with what has just come in is taken for the last one for now.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from herringbone.jobs.logs import LogLine
from herringbone.jobs.polling import Pace
from herringbone_contract.constants import split_line

# Of the 25 requests a second that an account may send, what one who waits may take.
_REQUESTS_PER_SECOND = 5.0
# A page of at least so many lines has more behind it, however fresh they are.
_LARGE_PAGE_EVENTS = 1_000
_FRESH_SECONDS = 5.0


@dataclass(slots=True)
class Stream:
    """One stream: how far it was read, and the lines that wait for their turn. Times are seconds, but `last_ms`."""

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
    """All streams of one job.

    >>> streams = Streams(Pace(2, 10, 1.5))
    >>> streams.found([{"logStreamName": "digits-1/algo-1-1763719200"}], now=0.0)
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

    def found(self, listed: Iterable[Mapping[str, Any]], *, now: float) -> None:
        """Take note of streams as DescribeLogStreams gives them: new ones, and those that have grown."""
        for entry in listed:
            name = entry["logStreamName"]
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = Stream(name, host_of(name), due=now, pause=self._pace.shortest)
            if (ingested := entry.get("lastIngestionTime", 0)) > stream.ingested:
                stream.ingested = ingested
                stream.due = min(stream.due, now)

    def due(self, now: float) -> list[Stream]:
        """Return the streams to read now, those with more to come first."""
        due = [stream for stream in self._streams.values() if not stream.drained or stream.due <= now]
        return sorted(due, key=lambda stream: (stream.drained, stream.due))

    def took(
        self,
        stream: Stream,
        events: Sequence[Mapping[str, Any]],
        token: str,
        *,
        now: float,
        served: float | None = None,
    ) -> None:
        """Take in a page; `token` is for the next.

        `served` is when the service sent it, in seconds since 1970; None to read on, however fresh the page is.
        """
        for event in events:
            stamp = event["timestamp"]
            if stream.skip and stamp == stream.last_ms:
                stream.skip -= 1
                continue
            stream.num_at_last = stream.num_at_last + 1 if stamp == stream.last_ms else 1
            stream.last_ms = stamp
            stream.waiting += lines_of(event, stream.host)
        stream.drained = token == stream.token or _ends_now(events, served)
        stream.token = token
        if events:
            stream.pause = self._pace.shortest
        if stream.drained:
            self._rest(stream, now)

    def forgotten(self, stream: Stream) -> None:
        """Start a stream over from its last line: the service no longer knows the token (it keeps one for a day)."""
        stream.token = None
        stream.drained = False
        stream.skip = stream.num_at_last

    def gone(self, stream: Stream, *, now: float) -> None:
        """Take note that the service has no such stream (any more)."""
        stream.drained = True
        self._rest(stream, now)

    def wake(self) -> None:
        """Have every stream looked at once more."""
        for stream in self._streams.values():
            stream.due = 0.0

    def take(self) -> list[LogLine]:
        """Return the lines whose turn has come: between hosts the time decides, within one its own order.

        A stream that has more to come holds back what is later than its last line, so that a log of hours is in order,
        too; a quiet one holds back nothing.
        """
        horizon = min((_reached(stream) for stream in self._streams.values() if not stream.drained), default=None)
        return list(heapq.merge(*(_until(each.waiting, horizon) for each in self._streams.values()), key=_time))

    def _rest(self, stream: Stream, now: float) -> None:
        stream.due = now + stream.pause
        longest = max(self._pace.longest, len(self._streams) / _REQUESTS_PER_SECOND)
        stream.pause = min(stream.pause * self._pace.slower, longest)


def host_of(stream_name: str) -> str:
    """Return whose a stream is.

    >>> host_of("digits-1/algo-12-1763719200")
    'algo-12'
    """
    host, _, start = stream_name.rpartition("/")[2].rpartition("-")
    return host if start.isdigit() and host.rpartition("-")[2].isdigit() else stream_name.rpartition("/")[2]


def lines_of(event: Mapping[str, Any], host: str) -> list[LogLine]:
    """Return an event's lines; our own prefix says the rank, other people's lines have none."""
    stamp = datetime.fromtimestamp(event["timestamp"] / 1_000, timezone.utc)
    lines = []
    for text in event["message"].rstrip("\n").split("\n"):
        named, rank, rest = split_line(text.encode("utf-8", "replace"))
        lines.append(LogLine(named or host, rank, stamp, rest.decode()))
    return lines


def _ends_now(events: Sequence[Mapping[str, Any]], served: float | None) -> bool:
    if served is None or not 0 < len(events) < _LARGE_PAGE_EVENTS:
        return False
    ingested: int = events[-1].get("ingestionTime", 0)
    return served - ingested / 1_000 < _FRESH_SECONDS


def _reached(stream: Stream) -> datetime:
    seconds = 0.0 if stream.last_ms is None else stream.last_ms / 1_000
    return datetime.fromtimestamp(seconds, timezone.utc)


def _until(waiting: deque[LogLine], horizon: datetime | None) -> list[LogLine]:
    lines = []
    while waiting and (horizon is None or waiting[0].time <= horizon):
        lines.append(waiting.popleft())
    return lines


def _time(line: LogLine) -> datetime:
    return line.time
