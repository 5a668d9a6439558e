"""CloudWatch Logs' reading operations over the log files of jobs.

A host's log is one stream, `JOB/algo-1-CREATED`, of the group that SageMaker writes to. An event is one line, without
the time that the controller wrote before it. Tokens are byte offsets in the host's file, which only grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herringbone.records.index import JobRecord
from herringbone.records.logs import STAMP_CHARS, parse_line
from herringbone.serve import listing
from herringbone.serve.calls import Call
from herringbone.serve.errors import ApiError
from herringbone.serve.trainings import Trainings
from herringbone_contract.events.format import EVENT_MARK
from herringbone_contract.masking import printable

GROUP = "/aws/sagemaker/TrainingJobs"
# As much of a log as one call reads, however few of its lines it finds. A page may so be empty and have a next one, as
# at AWS. A thread reads this in a tenth of a second or two.
_SCAN_BYTES = 8 << 20
# CloudWatch's own limits of one answer.
_MAX_EVENTS, _MAX_BYTES = 10_000, 1 << 20
_EVENT_BYTES = 26
_FORWARD, _BACKWARD = "f", "b"
_TOKEN = re.compile(r"(?P<way>[fb])/(?P<offset>\d{1,18})")
_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class Stream:
    """One host's log: the name of the stream, and the file."""

    name: str
    path: Path
    created: float


@dataclass(frozen=True, slots=True)
class Event:
    """One line: its text, its time in milliseconds since 1970, and where it begins and ends in the file.

    A `hidden` one is empty or for programs, and is no event of CloudWatch's.
    """

    time: int
    text: str
    begin: int
    end: int
    hidden: bool = False


class LogOperations:
    """The operations on logs; each takes the call and the members of its request. Raises `ApiError`."""

    def __init__(self, trainings: Trainings, home: Any) -> None:
        self._trainings = trainings
        self._home = home

    def describe_log_streams(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        _check_group(request)
        entries = [self._described(stream) for stream in self._streams(call, request.get("logStreamNamePrefix", ""))]
        by_time = request.get("orderBy") == "LastEventTime"
        chosen, token = listing.page(
            entries,
            key=lambda entry: entry.get("lastEventTimestamp", 0) if by_time else entry["logStreamName"],
            name="logStreamName",
            descending=request.get("descending", False),
            token=request.get("nextToken"),
            size=request.get("limit", 50),
            scope=f"{call.key.name} {request.get('logStreamNamePrefix', '')} {by_time}",
        )
        return {"logStreams": list(chosen)} | ({} if token is None else {"nextToken": token})

    def get_log_events(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        _check_group(request)
        stream = self._stream(call, request["logStreamName"])
        size = _size(stream.path)
        limit = request.get("limit", _MAX_EVENTS)
        way, offset = _token(request.get("nextToken"), from_head=request.get("startFromHead", False), size=size)
        read = _forward if way == _FORWARD else _backward
        events, begin, end = read(stream.path, offset, limit, _between(request))
        now = _now(stream.path)
        return {
            "events": [
                {"timestamp": event.time, "message": event.text, "ingestionTime": max(event.time, now)}
                for event in events
            ],
            "nextForwardToken": f"{_FORWARD}/{end:018d}",
            "nextBackwardToken": f"{_BACKWARD}/{begin:018d}",
        }

    def filter_log_events(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        _check_group(request)
        names = request.get("logStreamNames")
        streams = sorted(self._streams(call, request.get("logStreamNamePrefix", "")), key=lambda stream: stream.name)
        if names is not None:
            streams = [self._stream(call, name) for name in sorted(set(names))]
        words = _words(request.get("filterPattern", ""))
        allowed, limit = _between(request), request.get("limit", _MAX_EVENTS)
        first, offset = _place(request.get("nextToken"), streams)
        answer: list[dict[str, Any]] = []
        token, scan = None, _SCAN_BYTES

        def matches(event: Event) -> bool:
            return allowed(event) and all(word in event.text for word in words)

        for number in range(first, len(streams)):
            stream = streams[number]
            events, begin, end = _forward(stream.path, offset, limit - len(answer), matches, scan)
            answer += [_filtered(stream, event) for event in events]
            scan -= end - begin
            is_full = len(answer) >= limit or scan <= 0
            if end < _size(stream.path) or (is_full and number + 1 < len(streams)):
                token = f"{stream.name}:{end}"
                break
            offset = 0
        return {"events": answer, "searchedLogStreams": []} | ({} if token is None else {"nextToken": token})

    def _described(self, stream: Stream) -> dict[str, Any]:
        created = int(stream.created * 1000)
        members = {
            "logStreamName": stream.name,
            "creationTime": created,
            "arn": f"arn:aws:logs:*:*:log-group:{GROUP}:log-stream:{stream.name}",
            "storedBytes": 0,
        }
        first, _, _ = _forward(stream.path, 0, 1, lambda _: True)
        last, _, _ = _backward(stream.path, _size(stream.path), 1, lambda _: True)
        if first and last:
            members |= {
                "firstEventTimestamp": first[0].time,
                "lastEventTimestamp": last[0].time,
                "lastIngestionTime": max(last[0].time, _now(stream.path)),
            }
        return members

    def _streams(self, call: Call, prefix: str) -> Iterator[Stream]:
        job, slash, _ = prefix.partition("/")
        for record in self._trainings.visible(call):
            if record.name == job if slash else record.name.startswith(prefix):
                _, row = self._trainings.find(call, record.name)
                yield from (stream for stream in self._of_job(row) if stream.name.startswith(prefix))

    def _stream(self, call: Call, name: str) -> Stream:
        try:
            _, row = self._trainings.find(call, name.partition("/")[0])
        except ApiError:
            raise _no_stream() from None
        for stream in self._of_job(row):
            if stream.name == name:
                return stream
        raise _no_stream()

    def _of_job(self, row: JobRecord) -> Iterator[Stream]:
        """Yield the streams of a job; a host without a log has none, as at AWS."""
        folder = self._home.job(row.name)
        for host in row.plan_dict.get("hosts", ()):
            path = folder.log(host["name"])
            if path.exists():
                yield Stream(f"{row.name}/{host['name']}-{int(row.created)}", path, row.created)


def _filtered(stream: Stream, event: Event) -> dict[str, Any]:
    return {
        "logStreamName": stream.name,
        "timestamp": event.time,
        "message": event.text,
        "ingestionTime": max(event.time, _now(stream.path)),
        "eventId": f"{stream.name}:{event.begin}",
    }


def _forward(
    path: Path, offset: int, limit: int, allowed: Any, scan: int = _SCAN_BYTES
) -> tuple[list[Event], int, int]:
    """Return the next events from an offset on, and where they begin and end; at most `scan` bytes are read."""
    events: list[Event] = []
    room, end = _MAX_BYTES, offset
    for event in _events(path, offset):
        if len(events) >= limit or end - offset >= scan:
            break
        if not event.hidden and allowed(event):
            room -= len(event.text.encode()) + _EVENT_BYTES
            if room < 0 and events:
                break
            events.append(event)
        end = event.end
    return events, offset, end


def _backward(path: Path, offset: int, limit: int, allowed: Any) -> tuple[list[Event], int, int]:
    """Return the last events before an offset, the oldest first, and where they begin and end."""
    span, events = _MAX_BYTES // 4, []
    while True:
        start = max(0, offset - span)
        found = [event for event in _events(path, start, middle=start > 0) if not event.hidden and event.end <= offset]
        events = [event for event in found if allowed(event)]
        if start == 0 or len(events) >= limit or span >= _MAX_BYTES:
            break
        span *= 2
    events = events[-limit:]
    return events, events[0].begin if events else (0 if start == 0 else start), events[-1].end if events else offset


def _events(path: Path, offset: int, *, middle: bool = False) -> Iterator[Event]:
    """Yield the whole lines from an offset on; with `middle`, the offset may be in the midst of a line."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        file.seek(offset)
        if middle:
            offset += len(file.readline())
        for line in file:
            # A line that is being written comes whole with the next call.
            if not line.endswith(b"\n"):
                return
            begin, offset = offset, offset + len(line)
            parsed = parse_line(line[:-1], path.stem)
            text = line[STAMP_CHARS:-1] if parsed.time.timestamp() > 0 else line[:-1]
            message = printable(text.decode("utf-8", "replace"), keep="\t")
            yield Event(
                int(parsed.time.timestamp() * 1000),
                message,
                begin,
                offset,
                # CloudWatch takes no event without a message.
                hidden=not message or text.partition(b"] ")[2].startswith(EVENT_MARK),
            )


def _token(token: str | None, *, from_head: bool, size: int) -> tuple[str, int]:
    if token is None:
        return (_FORWARD, 0) if from_head else (_BACKWARD, size)
    match = _TOKEN.fullmatch(token)
    if match is None or int(match["offset"]) > size:
        raise _wrong("The specified nextToken is invalid.")
    return match["way"], int(match["offset"])


def _place(token: str | None, streams: list[Stream]) -> tuple[int, int]:
    """Return the number of the stream, and the offset in it, at which FilterLogEvents goes on."""
    if token is None:
        return 0, 0
    name, _, offset = token.rpartition(":")
    for number, stream in enumerate(streams):
        if stream.name == name and offset.isascii() and offset.isdigit() and len(offset) < 19:
            return number, int(offset)
    raise _wrong("The specified nextToken is invalid.")


def _between(request: Mapping[str, Any]) -> Any:
    start, end = request.get("startTime"), request.get("endTime")
    return lambda event: (start is None or event.time >= start) and (end is None or event.time < end)


def _words(pattern: str) -> list[str]:
    """Return the words and phrases of a filter pattern, all of which a line must have.

    >>> _words('error "out of memory"')
    ['error', 'out of memory']
    """
    if pattern.lstrip()[:1] in ("{", "[", "%") or re.search(r"(?:^|\s)[?-]", pattern):
        raise _wrong("filterPattern: words and quoted phrases are supported here, no other patterns")
    return [phrase or word for phrase, word in _WORD.findall(pattern)]


def _check_group(request: Mapping[str, Any]) -> None:
    name = request.get("logGroupName") or request.get("logGroupIdentifier", "").rpartition("log-group:")[2]
    if name.removesuffix(":*") != GROUP:
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _now(path: Path) -> int:
    # Lines are "ingested" when the controller writes them.
    return int(path.stat().st_mtime * 1000)


def _no_stream() -> ApiError:
    return ApiError("ResourceNotFoundException", "The specified log stream does not exist.")


def _wrong(message: str) -> ApiError:
    return ApiError("InvalidParameterException", message)
