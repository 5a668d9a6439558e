"""Find metrics in a job's log while the job runs, and write them into its events.

`python -m herringbone.events.from_log`, a process next to the job's controller, started only for jobs that have
metric definitions or print MLLOG lines:

    standard input     one line: the logs and the definitions. The end of the input means that the job is over.
    logs/algo-1.log    -> logs/algo-1.metrics.events
    standard output    notes for the log, one a line

A user's regular expression may search for ever. Here it blocks no controller; after a second on one line a definition
is given up, and a note says so.
"""

from __future__ import annotations

import json
import re
import select
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from types import FrameType

from herringbone.events.job_events import append_lines
from herringbone.jobs.logs import STAMP_CHARS, LogLine, Metric, parse_line
from herringbone_contract import mllog
from herringbone_contract.constants import split_line
from herringbone_contract.events.format import LOG, MLLOG, Event, Point, batches, encode

_MLLOG_MARK = mllog.PREFIX.encode()
_READ_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
# Values of a batch are at most this far apart.
_BATCH_SECONDS = 1.0
# Processor seconds after which a search of one line is given up; twice as many at most.
_SEARCH_SECONDS = 0.5
# A host's metrics take no more room on the disk than this.
_MAX_FILE_BYTES = 1 << 30
# A longer line is searched up to here, as CloudWatch has it.
_SEARCHED_CHARS = 256 * 1024

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.estimators.options import MetricDefinition


class SlowPatternError(Exception):
    """A regular expression has searched one line for too long."""


class Finder:
    """Finds values in the lines of one job: MLLOG lines, and matches of `definitions`, pairs of name and pattern.

    >>> finder = Finder([("loss", r"loss=(\\S+)")])
    >>> finder.find("loss=0.5 loss=none", "[algo-1:0]")
    [('loss', 0.5, 'log')]

    A match without a number is ignored. The end of a run, an epoch or another interval yields `run_seconds`,
    `epoch_seconds` and so on. `slow` has the names of definitions that were given up.
    """

    def __init__(self, definitions: Iterable[tuple[str, str]]) -> None:
        self._patterns = [(name, re.compile(regex)) for name, regex in definitions]
        # One reader per rank: the start and the end of an interval come from the same rank.
        self._readers: dict[str, mllog.Reader] = defaultdict(mllog.Reader)
        self.slow: list[str] = []
        # What `watch` compares: the number of the search, and whether one runs.
        self._number, self._is_searching, self._seen = 0, False, -1

    @classmethod
    def of(cls, definitions: Sequence[MetricDefinition]) -> Finder:
        """Return the finder for a plan's definitions."""
        return cls((definition.name, definition.regex) for definition in definitions)

    def may_match(self, lines: bytes) -> bool:
        """Report whether there may be a value; without definitions, only MLLOG lines have any."""
        return bool(self._patterns) or _MLLOG_MARK in lines

    def find(self, text: str, prefix: str) -> list[tuple[str, float, str]]:
        """Return the name, value and source of each value in a line; `prefix` tells ranks apart."""
        found = []
        text = text[:_SEARCHED_CHARS]
        if event := mllog.parse(text):
            found += [(name, value, MLLOG) for name, value in self._readers[prefix].numbers(event)]
        for definition in tuple(self._patterns):
            name, pattern = definition
            self._number += 1
            self._is_searching = True
            try:
                for match in pattern.finditer(text):
                    # A group that does not take part, or holds no number.
                    with suppress(TypeError, ValueError):
                        found.append((name, float(match.group(1)), LOG))
            except SlowPatternError:
                self._patterns.remove(definition)
                self.slow.append(name)
            finally:
                self._is_searching = False
        return found

    def watch(self) -> None:
        """Raise `SlowPatternError` when the search that ran at the last call still runs; called by a timer."""
        if self._is_searching and self._seen == self._number:
            raise SlowPatternError
        self._seen = self._number


class HostMetrics:
    """Finds the metrics in one host's log, from pieces of whole lines.

    >>> metrics = HostMetrics("algo-1", Finder([("loss", r"loss=(\\S+)")]))
    >>> [metric.value for metric in metrics.take(b"2026-11-21T11:44:37.123456Z [algo-1:0] loss=0.5\\n")]
    [0.5]
    """

    def __init__(self, host: str, finder: Finder) -> None:
        self._host, self._finder = host, finder
        self._stamped = b""

    def take(self, lines: bytes) -> list[Metric]:
        metrics: list[Metric] = []
        if not self._finder.may_match(lines):
            return metrics
        for line in lines.split(b"\n"):
            is_stamped = line[STAMP_CHARS - 2 : STAMP_CHARS] == b"Z "
            if is_stamped:
                self._stamped = line
            if self._finder.may_match(line):
                # A line without a time stamp is all text, and has the time of the one before it.
                host, rank, text = split_line(line[STAMP_CHARS:]) if is_stamped else (self._host, None, line)
                prefix = f"{host}:{rank}"
                for name, value, source in self._finder.find(text.decode("utf-8", "replace"), prefix):
                    time = parse_line(self._stamped, self._host).time
                    metrics.append(Metric(name, value, time, host or self._host, rank, source=source))
        return metrics


def find_metrics(lines: Iterable[LogLine], finder: Finder) -> list[Metric]:
    """Return the metrics in lines of a log, in the order of the lines."""
    return [
        Metric(name, value, line.time, line.host, line.rank, source=source)
        for line in lines
        for name, value, source in finder.find(line.text, line.prefix)
    ]


def metric_events(metrics: Iterable[Metric]) -> Iterator[Event]:
    """Yield the `metrics` events of values in their order.

    >>> from datetime import datetime, timezone
    >>> at = datetime.fromtimestamp(1.0, timezone.utc)
    >>> values = [Metric("a", value, at, "algo-1", 0) for value in (1.0, 2.0)]
    >>> [event["values"] for event in metric_events(values)]
    [[1.0, 2.0]]
    """
    for host, found in groupby(metrics, key=lambda metric: metric.host):
        points = map(_point, found)
        for _, second in groupby(points, key=lambda point: point.time // _BATCH_SECONDS):
            for event in batches(second):
                yield {**event, "host": host}


def _point(metric: Metric) -> Point:
    return Point(metric.time.timestamp(), metric.name, metric.value, metric.step, metric.rank, metric.source)


class _Log:
    """One host's log, from the byte `begin` on, and the file of its metrics."""

    def __init__(self, folder: str, host: str, begin: int, finder: Finder) -> None:
        self._path, self._position = f"{folder}/{host}.log", begin
        self._target = f"{folder}/{host}.metrics.events"
        self._metrics = HostMetrics(host, finder)
        self._partial = b""
        self._written = 0

    def read(self) -> bool:
        """Write the metrics of the next piece of the log; return whether there was one."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(self._position)
                chunk = file.read(_READ_BYTES)
        except OSError:
            return False
        self._position += len(chunk)
        lines, _, self._partial = (self._partial + chunk).rpartition(b"\n")
        self._write(lines)
        return bool(chunk)

    def finish(self) -> None:
        """Write the metrics of a last line without its end: nobody writes any more."""
        self._write(self._partial)

    def _write(self, lines: bytes) -> None:
        events = b"".join(map(encode, metric_events(self._metrics.take(lines))))
        if events and self._written < _MAX_FILE_BYTES:
            append_lines(self._target, events)
            self._written += len(events)


def main() -> None:
    """Follow the logs until the end of the input, and then to their ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The controller ends this process by the end of its input. Slurm signals every process of a batch job.
        signal.signal(number, signal.SIG_IGN)
    request = json.loads(sys.stdin.buffer.readline())
    finder = Finder(request["definitions"])

    def watch(_: int, __: FrameType | None) -> None:
        finder.watch()

    # The `re` module looks for signals during a search. Processor time: a machine that computes is no slow pattern.
    signal.signal(signal.SIGPROF, watch)
    signal.setitimer(signal.ITIMER_PROF, _SEARCH_SECONDS, _SEARCH_SECONDS)
    logs = [_Log(request["logs"], host, begin, finder) for host, begin in request["hosts"].items()]
    over = False
    while not over:
        # Asked before the logs are read: what was written before the end is read after it.
        over = bool(select.select([sys.stdin], [], [], _LOOK_SECONDS)[0])
        # One piece of each at a time, so that no host waits for another's backlog.
        while [log for log in logs if log.read()]:
            pass
    for log in logs:
        log.finish()
    for name in finder.slow:
        print(f"metric_definitions: the regular expression of {name!r} needed too long for one line and was given up")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
