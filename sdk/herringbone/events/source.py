"""Read a job's events as they arrive.

Each host has a file of events next to its log: `logs/algo-1.events`. Events about the whole job are in
`logs/job.events`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from herringbone_contract.events.format import EVENT_MARK, MAX_EVENT_BYTES, Event, parse

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource

_READ_BYTES = 1 << 22
_DECODER = msgspec.json.Decoder()


class FileEvents:
    """The files of events of one job, as an `EventSource`; a file may not exist yet.

    >>> FileEvents([Path("job.events")]).read()
    []
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = [_EventFile(path) for path in files]

    def read(self) -> list[Event]:
        events = [event for file in self._files for event in file.read()]
        # Of one host they are in order, but for those with the times of earlier lines.
        events.sort(key=lambda event: event["t"])
        return events

    def close(self) -> None:
        for file in self._files:
            file.close()


class LogEvents:
    """The events among the lines of a log, as an `EventSource`: a service stores nothing else of a job's hosts."""

    def __init__(self, logs: LogSource) -> None:
        self._logs = logs

    def read(self) -> list[Event]:
        mark = EVENT_MARK.decode()
        events = []
        for line in self._logs.read():
            if line.rank is None and line.text.startswith(mark):
                event = parse(line.text.removeprefix(mark).encode())
                if event is not None:
                    events.append({"host": line.host, **event})
        return events

    def close(self) -> None:
        self._logs.close()


class _EventFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._partial = b""

    def read(self) -> list[Event]:
        if self._file is None:
            try:
                # Unbuffered: a buffered reader would remember the end of a file that still grows.
                self._file = self._path.open("rb", buffering=0)
            except FileNotFoundError:
                return []
        events: list[Event] = []
        while chunk := self._file.read(_READ_BYTES):
            complete, _, self._partial = (self._partial + chunk).rpartition(b"\n")
            if complete:
                events += decode_lines(complete)
        return events

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def decode_lines(lines: bytes) -> list[Event]:
    """Return the events of complete lines; a line that is no event is left out.

    >>> decode_lines(b'{"kind":"bill","t":1.0,"text":"$2"}\\nno event')
    [{'kind': 'bill', 't': 1.0, 'text': '$2'}]
    """
    try:
        decoded = _DECODER.decode_lines(lines)
    except (msgspec.DecodeError, RecursionError):
        # A full disk has cut a line, or a host wrote something else.
        decoded = [event for line in lines.split(b"\n") if (event := _decode(line)) is not None]
    return [event for event in decoded if _is_event(event)]


def _decode(line: bytes) -> object:
    try:
        return None if len(line) > MAX_EVENT_BYTES else _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_event(event: object) -> bool:
    return isinstance(event, dict) and isinstance(event.get("kind"), str) and type(event.get("t")) in (int, float)
