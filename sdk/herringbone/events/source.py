"""Read a job's events as they arrive.

logs/job.events               the whole job: states, restarts, the bill
logs/algo-1.events            one host: what its observer and its ranks have sent
logs/algo-1.metrics.events    one host: metrics that `from_log` finds in its log
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from herringbone.events.kinds import MAX_TIME
from herringbone_contract.events.format import MAX_EVENT_BYTES, Event

_Decoded = TypeVar("_Decoded")
# The middle one is for a text in JSON that is not UTF-8, which msgspec does not call an error of its own.
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Read at once of each file: events of this many bytes take about ten times as much memory.
_READ_BYTES = 1 << 20
# Enough for the newest progress and metrics, also where samples of many GPUs come between them.
_TAIL_BYTES = 1 << 18
_DECODER = msgspec.json.Decoder()


class FileEvents:
    """The files of events of one job, as an `EventSource`; a file may not exist yet.

    >>> FileEvents([Path("job.events")]).read()
    []
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.paths = tuple(files)
        # Events that were read and not returned yet, by file.
        self._waiting: dict[EventFile, list[Event]] = {EventFile(path): [] for path in self.paths}

    def read(self) -> list[Event]:
        for file, waiting in self._waiting.items():
            if not waiting:
                waiting += file.read()
        # A file that has events waiting may have more of them, so later events of the others wait for its turn.
        horizon = min((max(map(_time, waiting)) for waiting in self._waiting.values() if waiting), default=0.0)
        return by_time([_take_until(waiting, horizon) for waiting in self._waiting.values()])

    def rest(self, ended: float | None) -> Iterator[list[Event]]:  # noqa: ARG002 - a controller writes all events before it ends
        yield from iter(self.read, [])

    def close(self) -> None:
        for file in self._waiting:
            file.close()


class EventLines:
    """Collects bytes into events: pieces may end anywhere.

    >>> lines = EventLines()
    >>> lines.feed(b'{"kind":"bill","t":1.0,'), lines.feed(b'"text":"$2"}\\n')
    ([], [{'kind': 'bill', 't': 1.0, 'text': '$2'}])
    """

    def __init__(self) -> None:
        self._partial = b""

    def complete(self, chunk: bytes) -> bytes:
        """Return the lines that are complete with the next bytes."""
        complete, _, self._partial = (self._partial + chunk).rpartition(b"\n")
        if len(self._partial) > MAX_EVENT_BYTES:
            # No event is that long. Its rest is no event either.
            self._partial = self._partial[-MAX_EVENT_BYTES:]
        return complete

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that are complete with the next bytes."""
        complete = self.complete(chunk)
        return decode_lines(complete) if complete else []


class EventFile:
    """Reads one file of events as it grows; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lines = EventLines()

    def read(self) -> list[Event]:
        """Return the next events; [] when there are no more for now."""
        while lines := self.read_lines():
            if events := decode_lines(lines):
                return events
        return []

    def read_lines(self) -> bytes:
        """Return the next complete lines, at most about 1 MiB; b"" when there are no more for now."""
        if self._file is None:
            try:
                # Unbuffered: a buffered reader would remember the end of a file that still grows.
                self._file = self._path.open("rb", buffering=0)
            except FileNotFoundError:
                return b""
        while chunk := self._file.read(_READ_BYTES):
            if complete := self._lines.complete(chunk):
                return complete
        return b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def tail(path: Path) -> tuple[bytes, bool]:
    """Return the end of a file of events, and whether that is all of it.

    The end has the newest events of each kind that still comes. Its first line may be cut, which is no event.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(), size <= _TAIL_BYTES
    except OSError:
        return b"", True


def by_time(events: Iterable[list[Event]]) -> list[Event]:
    """Return the events of several files as one list."""
    # Of one host they are in order, but for those with the times of earlier lines.
    return sorted((event for of_file in events for event in of_file), key=_time)


def _take_until(waiting: list[Event], horizon: float) -> list[Event]:
    count = next((number for number, event in enumerate(waiting) if event["t"] > horizon), len(waiting))
    taken = waiting[:count]
    del waiting[:count]
    return taken


def _time(event: Event) -> float:
    time: float = event["t"]
    return time


def decode_lines(lines: bytes) -> list[Event]:
    """Return the events of complete lines; a line that is no event is left out.

    >>> decode_lines(b'{"kind":"bill","t":1.0,"text":"$2"}\\nno event')
    [{'kind': 'bill', 't': 1.0, 'text': '$2'}]
    """
    return [event for event in each_line(_DECODER, lines) if _is_event(event)]


def each_line(decoder: msgspec.json.Decoder[_Decoded], lines: bytes) -> list[_Decoded]:
    """Return what a decoder makes of complete lines; a line that it refuses is left out."""
    try:
        return decoder.decode_lines(lines)
    except _REFUSALS:
        # A full disk has cut a line, or a host wrote something else.
        decoded = []
    for line in lines.split(b"\n"):
        with suppress(*_REFUSALS):
            if len(line) <= MAX_EVENT_BYTES:
                decoded.append(decoder.decode(line))
    return decoded


def _is_event(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return False
    time: Any = event.get("t")
    return type(time) in (int, float) and 0 <= time < MAX_TIME
