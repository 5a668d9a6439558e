"""Log lines, and the reader of a job's log files while they grow.

A file contains one host's lines, each `2026-11-21T11:44:37.123456Z [algo-1:0] text`: the controller's time stamp, then
the line of the host's supervisor.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from herringbone_contract.constants import LIVE_MARK, live_path, split_line
from herringbone_contract.errors import OptionError
from herringbone_contract.events.format import EVENT_MARK, LOG, Point

STAMP_CHARS = len("2026-11-21T11:44:37.123456Z ")
_EVENT_MARK = EVENT_MARK.decode()
_LONG_AGO = datetime.fromtimestamp(0, timezone.utc)
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `rank` is None for a line of the host's supervisor itself; `time` is UTC.

    `live` is true for the state of a progress bar that is not over: the next line of the same rank replaces it.
    """

    host: str
    rank: int | None
    time: datetime
    text: str
    live: bool = False

    @property
    def event(self) -> str | None:
        """The JSON of an event that a supervisor printed among its lines; None for every other line.

        >>> LogLine("algo-1", None, _LONG_AGO, '\x1e{"kind": "bill"}').event
        '{"kind": "bill"}'
        """
        return self.text[1:] if self.rank is None and self.text.startswith(_EVENT_MARK) else None

    @property
    def prefix(self) -> str:
        """The source of the line, as the log shows it: `[algo-1:0]`."""
        return f"[{self.host}]" if self.rank is None else f"[{self.host}:{self.rank}]"


def parse_line(line: bytes, host: str, before: datetime = _LONG_AGO) -> LogLine:
    """Parse one line of a log file; `host` is the file's, and `before` is the time of the line before it.

    >>> parse_line(b"2026-11-21T11:44:37.123456Z [algo-1:0]   loss 0.5", "algo-1").text
    '  loss 0.5'

    Bytes that are not UTF-8 are replaced. A line without a time stamp, which a full disk or a crash of the machine has
    cut, is shown as it is.
    """
    try:
        # Newer Pythons accept shorter times as well, so the end of the stamp is compared first.
        if line[STAMP_CHARS - 2 : STAMP_CHARS] != b"Z ":
            raise ValueError
        stamp = _moment(line[: STAMP_CHARS - 2])
    except ValueError:
        return LogLine(host, None, before, line.decode("utf-8", "replace"))
    return marked_line(line[STAMP_CHARS:], host, stamp)


@functools.lru_cache(maxsize=64)
def _moment(stamp: bytes) -> datetime:
    # A controller stamps all lines of one read alike.
    return datetime.fromisoformat(stamp.decode()).replace(tzinfo=timezone.utc)


def marked_line(line: bytes, host: str, time: datetime) -> LogLine:
    """Return a line as a supervisor prints it, with its prefix, and with the mark of a progress bar's state.

    >>> marked_line(b"[algo-1:0] \\r10 %", "algo-1", _LONG_AGO).text
    '10 %'
    """
    named, rank, text = split_line(line)
    live = rank is not None and text.startswith(LIVE_MARK)
    return LogLine(
        named or host, rank, time, text.removeprefix(LIVE_MARK if live else b"").decode("utf-8", "replace"), live
    )


class HostLog:
    """Reads one host's log file as it grows; the file may not exist yet.

    With `last_bytes`, it begins with the first whole line among the last bytes that the file has at the first read.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self._path = path
        self._host = path.stem
        self._last_bytes = last_bytes
        self._file: BinaryIO | None = None
        self._partial = b""
        self._time = _LONG_AGO
        self._live: set[LogLine] = set()
        # The file was opened in the midst of a line, whose rest is no line.
        self._is_in_line = False

    def read(self) -> list[LogLine]:
        """Return the complete lines that were written since the last call, and new states of progress bars."""
        lines = self._read_lines()
        states = self._read_live()
        new = [state for state in states if state not in self._live]
        self._live = set(states)
        return lines + new

    def _read_live(self) -> list[LogLine]:
        try:
            content = Path(live_path(str(self._path))).read_bytes()
        except OSError:
            return []
        return [parse_line(line, self._host) for line in content.split(b"\n")[:-1]]

    def _read_lines(self) -> list[LogLine]:
        if self._file is None:
            try:
                # Unbuffered: a buffered reader would remember the end of a file that still grows.
                self._file = self._path.open("rb", buffering=0)
            except FileNotFoundError:
                return []
            if self._last_bytes is not None:
                size = self._file.seek(0, SEEK_END)
                self._file.seek(max(0, size - self._last_bytes))
                self._is_in_line = size > self._last_bytes
        lines: list[bytes] = []
        # A line longer than one read must not look like the end of the file, so read on until one is complete.
        while not lines and (chunk := self._file.read(_READ_BYTES)):
            *lines, self._partial = (self._partial + chunk).split(b"\n")
        if lines and self._is_in_line:
            self._is_in_line = False
            del lines[0]
        return [self._parse(line) for line in lines]

    def rest(self) -> list[LogLine]:
        """Return what was written last, complete or not: nobody writes any more."""
        lines = self._read_lines()
        if not lines and self._partial:
            lines, self._partial = [self._parse(self._partial)], b""
        return lines

    def _parse(self, line: bytes) -> LogLine:
        parsed = parse_line(line, self._host, self._time)
        self._time = parsed.time
        return parsed

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class FileLogs:
    """The log files of all hosts of one job, as a `LogSource`; `paths` are all of the log that there is.

    `last_bytes` leaves out all but the ends of the files; see `HostLog`.
    """

    def __init__(self, files: Iterable[Path], *, last_bytes: int | None = None) -> None:
        self.paths = tuple(files)
        self._hosts = [HostLog(path, last_bytes=last_bytes) for path in self.paths]

    def read(self) -> list[LogLine]:
        return first_shown(lambda: _merged([host.read() for host in self._hosts]))

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - a controller writes all lines before it ends
        yield from iter(lambda: first_shown(lambda: _merged([host.rest() for host in self._hosts])), [])

    def close(self) -> None:
        for host in self._hosts:
            host.close()


def _merged(hosts: list[list[LogLine]]) -> list[LogLine]:
    # By time between hosts. Within one host the file's order stays, even if the clock was set back.
    return list(heapq.merge(*hosts, key=lambda line: line.time))


def without_events(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines that people read; events are in the log of a service, which has no other place for them.

    >>> without_events([LogLine("algo-1", None, _LONG_AGO, '\x1e{}'), LogLine("algo-1", 0, _LONG_AGO, "done")])[0].text
    'done'
    """
    return [line for line in lines if line.event is None]


def first_shown(read: Callable[[], list[LogLine]]) -> list[LogLine]:
    """Read until there are lines that people read, or none at all."""
    # Lines that are all events must not look like the end of the log.
    while lines := read():
        if shown := without_events(lines):
            return shown
    return []


def check_pattern(pattern: str) -> None:
    """Raise `OptionError` for a text that is no regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(f"pattern {pattern!r}: no regular expression of Python: {error}") from None


def check_source(plan: Mapping[str, Any], rank: int | None, host: str | None) -> None:
    """Raise `OptionError` for a rank or a host that a job has not; `plan` is a stored one.

    >>> check_source({"hosts": [{"name": "algo-1", "ranks": 2}]}, 1, "algo-1")

    Of a job whose hosts count their ranks themselves, the ranks are not known here.
    """
    hosts = {entry["name"]: entry.get("ranks") for entry in plan.get("hosts", ())}
    if host is not None and hosts and host not in hosts:
        raise OptionError(f"host {host!r}: the job has none of that name; its hosts are {', '.join(list(hosts)[:8])}")
    counts = [count for count in hosts.values() if count is not None]
    if rank is not None and counts and len(counts) == len(hosts) and not 0 <= rank < sum(counts):
        raise OptionError(f"rank {rank}: the job has none of that number; it has {sum(counts)}, from 0 on")
    if rank is not None and rank < 0:
        raise OptionError(f"rank {rank}: ranks count from 0")


def select_lines(
    lines: Iterable[LogLine],
    *,
    rank: int | None = None,
    host: str | None = None,
    since: datetime | None = None,
    pattern: str | None = None,
    live: bool = False,
) -> Iterator[LogLine]:
    """Return the lines of one rank, of one host, written since a moment, and with a match of a pattern; None means any.

    `live` keeps the states of progress bars that are not over.

    >>> lines = [LogLine("algo-1", 0, _LONG_AGO, "loss 0.5"), LogLine("algo-1", 0, _LONG_AGO, "done")]
    >>> [line.text for line in select_lines(lines, pattern="loss")]
    ['loss 0.5']
    """
    search = None if pattern is None else re.compile(pattern).search
    return (
        line
        for line in lines
        if live >= line.live
        and rank in (None, line.rank)
        and host in (None, line.host)
        and (since is None or line.time >= since)
        and (search is None or search(line.text))
    )


def last_lines(batches: Iterable[list[LogLine]], count: int) -> Iterator[list[LogLine]]:
    """Drop all but the last `count` lines of the batches before the first empty one, and yield all later batches.

    >>> lines = [LogLine("algo-1", 0, _LONG_AGO, text) for text in "abcd"]
    >>> [[line.text for line in batch] for batch in last_lines([lines[:2], lines[2:3], [], lines[3:]], 2)]
    [['b', 'c'], ['d']]
    """
    remaining = iter(batches)
    newest: deque[LogLine] = deque(maxlen=count)
    for batch in remaining:
        if not batch:
            break
        newest.extend(batch)
    yield list(newest)
    yield from remaining


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a metric.

    `source` says who found it: `log` (a metric definition), `mllog` (MLPerf's lines), `script`, `huggingface` and
    others of `herringbone_contract.events.format`. `step` is None where the source counts no steps.
    """

    name: str
    value: float
    time: datetime
    host: str
    rank: int | None
    step: int | None = None
    source: str = LOG

    @property
    def point(self) -> Point:
        """The value as events have it."""
        return Point(self.time.timestamp(), self.name, self.value, self.step, self.rank, self.source)
