"""Log lines: what they are, and how a job's files are read while they grow.

A file holds one host's lines, each `2026-11-21T11:44:37.123456Z [algo-1:0] text`: the controller's stamp, then what the
host's supervisor wrote.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from herringbone_contract import mllog
from herringbone_contract.constants import split_line

if TYPE_CHECKING:
    from herringbone.estimators.options import MetricDefinition

STAMP_CHARS = len("2026-11-21T11:44:37.123456Z ")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `rank` is None for what the host's supervisor itself says; `time` is UTC."""

    host: str
    rank: int | None
    time: datetime
    text: str

    @property
    def prefix(self) -> str:
        """Where it comes from, as the log shows it: `[algo-1:0]`."""
        return f"[{self.host}]" if self.rank is None else f"[{self.host}:{self.rank}]"


def parse_line(line: bytes, host: str) -> LogLine:
    """Take a filed line apart; `host` is the file's.

    >>> parse_line(b"2026-11-21T11:44:37.123456Z [algo-1:0]   loss 0.5", "algo-1").text
    '  loss 0.5'

    Text that is no UTF-8 has its odd bytes replaced.
    """
    stamp = datetime.fromisoformat(line[: STAMP_CHARS - 2].decode()).replace(tzinfo=timezone.utc)
    named, rank, text = split_line(line[STAMP_CHARS:])
    return LogLine(named or host, rank, stamp, text.decode("utf-8", "replace"))


class HostLog:
    """One host's file, read as it grows; it may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> list[LogLine]:
        """Return the whole lines that came since the last call."""
        if self._file is None:
            try:
                # Unbuffered: a buffered reader would remember the end of a file that still grows.
                self._file = self._path.open("rb", buffering=0)
            except FileNotFoundError:
                return []
        lines: list[bytes] = []
        # A line longer than one read must not look like the end of what there is.
        while not lines and (chunk := self._file.read(_READ_BYTES)):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [parse_line(line, self._path.stem) for line in lines]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class FileLogs:
    """The log files of all hosts of one job, as a `LogSource`."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._hosts = [HostLog(path) for path in files]

    def read(self) -> list[LogLine]:
        # Between hosts the time decides; within one, the order of the file does, also when the clock was set back.
        return list(heapq.merge(*(host.read() for host in self._hosts), key=lambda line: line.time))

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - the controller writes before it ends
        yield from iter(self.read, [])

    def close(self) -> None:
        for host in self._hosts:
            host.close()


def chosen(lines: Iterable[LogLine], *, rank: int | None, host: str | None) -> Iterator[LogLine]:
    """Return the lines of one rank, one host, or both; None means any."""
    return (line for line in lines if rank in (None, line.rank) and host in (None, line.host))


@dataclass(frozen=True, slots=True)
class Metric:
    """One value that a metric definition found in a line of the log, or that a line of MLPerf's log tells."""

    name: str
    value: float
    time: datetime
    host: str
    rank: int | None


def find_metrics(lines: Iterable[LogLine], definitions: Sequence[MetricDefinition]) -> list[Metric]:
    """Return what `:::MLLOG` lines tell and the definitions find, in the order of the lines.

    A group that holds no number counts for nothing. Of a run, an epoch or another interval there is `run_seconds`,
    `epoch_seconds` and so on, at its end.
    """
    patterns = [(definition.name, re.compile(definition.regex)) for definition in definitions]
    readers: dict[str, mllog.Reader] = defaultdict(mllog.Reader)
    found = []
    for line in lines:
        if event := mllog.parse(line.text):
            told = readers[line.prefix].numbers(event)
            found += [Metric(name, value, line.time, line.host, line.rank) for name, value in told]
        for name, pattern in patterns:
            for match in pattern.finditer(line.text):
                try:
                    value = float(match.group(1))
                except (TypeError, ValueError):
                    continue
                found.append(Metric(name, value, line.time, line.host, line.rank))
    return found
