"""Find metrics in a job's log while the job runs, and write them into its events.

`python -m herringbone.events.from_log`, a process next to the job's controller, started only for jobs that have
metric definitions or print MLLOG lines:

    standard input     a line with the logs and the definitions, then states of progress bars, which no log has, as
                       lines of one. The end of the input means that the job is over.
    logs/algo-1.log    -> logs/algo-1.metrics.events
    standard output    notes for the log, one a line

A user's regular expression may search for ever. Here it blocks no controller; after a second on one line a definition
is given up, and a note says so.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from types import FrameType

from herringbone.records.job_events import append_lines
from herringbone.records.logs import STAMP_CHARS, LogLine, Metric, parse_line
from herringbone_contract.constants import LIVE_MARK, split_line
from herringbone_contract.events import mllog
from herringbone_contract.events.format import LOG, MLLOG, Event, batches, encode
from herringbone_contract.resources import host_names

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
# A note has as much of a match that is no number.
_SHOWN_CHARS = 80
# What follows a value that is the beginning of a longer number: thousands, decimals, an exponent. The last alternative
# needs a sign or the end of the word, so that the unit of `5e` or the hash `12e5f` is no exponent.
_CUT = re.compile(
    r"[,_][0-9]{3}(?![0-9])|(?=[0-9.eE])[0-9]*(?:\.[0-9]+)?(?![0-9]|\.[0-9])(?:[eE](?:[-+][0-9]+|[0-9]+(?!\w)))?"
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO

    from herringbone.plan.options.typed import MetricDefinition


class SlowPatternError(Exception):
    """A regular expression has searched one line for too long."""


class Finder:
    """Finds values in the lines of one job: MLLOG lines, and matches of `definitions`, pairs of name and pattern.

    >>> finder = Finder([("loss", r"loss=(\\S+)")])
    >>> finder.find("loss=0.5 loss=none", "[algo-1:0]")
    [('loss', 0.5, 'log')]

    The end of a run, an epoch or another interval yields `run_seconds`, `epoch_seconds` and so on. `slow` has the
    names of definitions that were given up, and `notes` names those that found no number.
    """

    def __init__(self, definitions: Iterable[tuple[str, str]]) -> None:
        self._patterns = [(name, re.compile(regex)) for name, regex in definitions]
        # One reader per rank: the start and the end of an interval come from the same rank.
        self._readers: dict[str, mllog.Reader] = defaultdict(mllog.Reader)
        self.slow: list[str] = []
        # By name: the matches, those without a number, and what the first of those holds instead.
        self._matches: dict[str, tuple[int, int, str]] = {name: (0, 0, "") for name, _ in self._patterns}
        # By name: the first value that is only the beginning of the number in the line.
        self._cut: dict[str, str] = {}
        # By rank: the state of its progress bar.
        self._states: dict[str, str] = {}
        # What `watch` compares: the number of the search, and whether one runs.
        self._number, self._is_searching, self._seen = 0, False, -1

    @classmethod
    def of(cls, definitions: Sequence[MetricDefinition]) -> Finder:
        """Return the finder for a plan's definitions."""
        return cls((definition.name, definition.regex) for definition in definitions)

    def may_match(self, lines: bytes) -> bool:
        """Report whether there may be a value; without definitions, only MLLOG lines have any."""
        return bool(self._patterns) or _MLLOG_MARK in lines

    def find(self, text: str, prefix: str, *, live: bool = False) -> list[tuple[str, float, str]]:
        """Return the name, value and source of each value in a line; `prefix` tells ranks apart.

        The line that ends a progress bar is its last state, which was `live`, once more: it has no further value.
        """
        found: list[tuple[str, float, str]] = []
        text = text[:_SEARCHED_CHARS]
        if live:
            self._states[prefix] = text
        elif self._states and self._states.pop(prefix, None) == text.rstrip("\r"):
            return found
        if event := mllog.parse(text):
            found += [(name, value, MLLOG) for name, value in self._readers[prefix].numbers(event)]
        for definition in tuple(self._patterns):
            name, pattern = definition
            self._number += 1
            self._is_searching = True
            try:
                for match in pattern.finditer(text):
                    matches, failures, first = self._matches[name]
                    # A group that does not take part is None.
                    value = match.group(1)
                    if name not in self._cut and value and (whole := _whole(value, text, match.end(1))):
                        self._cut[name] = _cut_note(value, whole)
                    try:
                        found.append((name, float(value), LOG))
                    except (TypeError, ValueError):
                        first, failures = first or repr(value)[:_SHOWN_CHARS], failures + 1
                    self._matches[name] = matches + 1, failures, first
            except SlowPatternError:
                self._patterns.remove(definition)
                self.slow.append(name)
            finally:
                self._is_searching = False
        return found

    def notes(self, hosts: Sequence[str]) -> list[str]:
        """Return lines about definitions whose values are missing, for the end of the log of these hosts.

        >>> finder = Finder([("loss", r"loss=(\\S+)"), ("top", "top=(.)")])
        >>> _ = finder.find("loss=1,234.5", "[algo-1:0]")
        >>> finder.notes(["algo-1"])[0]
        "metric_definitions: 'loss' matched 1 time, 1 of them without a number (first: '1,234.5')"
        """
        notes = [
            f"the regular expression of {name!r} needed too long for one line and was given up" for name in self.slow
        ]
        for name, (matches, failures, first) in self._matches.items():
            if failures:
                times = f"{matches} time{'s' * (matches > 1)}"
                notes.append(f"{name!r} matched {times}, {failures} of them without a number (first: {first})")
        notes += [f"{name!r} took {cut}" for name, cut in self._cut.items()]
        # Where each machine of a job searches its own log, most print nothing: the first host is that of rank 0.
        unseen = [repr(name) for name, counts in self._matches.items() if not counts[0] and name not in self.slow]
        if unseen and host_names(1)[0] in hosts:
            place = f"the log of {hosts[0]}" if len(hosts) == 1 else f"the logs of {len(hosts)} hosts"
            notes.append(f"{', '.join(unseen)} matched nothing in {place}")
        return [f"metric_definitions: {note}" for note in notes]

    def watch(self) -> None:
        """Raise `SlowPatternError` when the search that ran at the last call still runs; called by a timer."""
        if self._is_searching and self._seen == self._number:
            raise SlowPatternError
        self._seen = self._number


def _whole(value: str, text: str, end: int) -> str:
    """Return the number of which a group took only the beginning, up to `end` in the line; "" if it took all.

    >>> _whole("2", "loss=2e-05", 6), _whole("2", "loss=2 e-05", 6), _whole("1", "10.0.0.1", 1)
    ('2e-05', '', '')
    """
    cut = _CUT.match(text, end)
    if cut is None or not cut[0] or value[-1] not in "0123456789.":
        return ""
    whole = value + cut[0]
    try:
        # Text that is no number when it is whole was not cut.
        float(whole.replace(",", ""))
    except ValueError:
        return ""
    return whole


def _cut_note(value: str, whole: str) -> str:
    remedy = "print the number without commas" if "," in whole else r"let the group of its Regex take all of it: (\S+)"
    return f"{value} of {whole!r}"[:_SHOWN_CHARS] + f": {remedy}"


class HostMetrics:
    """Finds the metrics in one host's log, from pieces of whole lines, which may be states of progress bars.

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
                if is_stamped and host == self._host and rank is None:
                    # The supervisor's and the controller's own lines, which may quote a line of a rank.
                    continue
                live = rank is not None and text.startswith(LIVE_MARK)
                shown = text[live:].decode("utf-8", "replace")
                for name, value, source in self._finder.find(shown, f"{host}:{rank}", live=live):
                    time = parse_line(self._stamped, self._host).time
                    metrics.append(Metric(name, value, time, host or self._host, rank, source=source))
        return metrics


def find_metrics(lines: Iterable[LogLine], finder: Finder) -> list[Metric]:
    """Return the metrics in lines of a log, in the order of the lines."""
    return [
        Metric(name, value, line.time, line.host, line.rank, source=source)
        for line in lines
        for name, value, source in finder.find(line.text, line.prefix, live=line.live)
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
        points = (metric.point for metric in found)
        for _, second in groupby(points, key=lambda point: point.time // _BATCH_SECONDS):
            for event in batches(second):
                yield {**event, "host": host}


class _Log:
    """One host's log, from the byte `begin` on, and the file of its metrics."""

    def __init__(self, folder: str, host: str, begin: int, finder: Finder) -> None:
        self._path, self._position = f"{folder}/{host}.log", begin
        self._target = f"{folder}/{host}.metrics.events"
        self._metrics = HostMetrics(host, finder)
        self._partial = b""
        self._written = self._end = 0
        # States of progress bars that wait for the lines before them; those of the first `_known` are in the log.
        self.states: list[bytes] = []
        self._known = 0

    def look(self) -> None:
        """Note the end of the log, up to which `read` reads."""
        self._known = len(self.states)
        with suppress(OSError):
            self._end = os.stat(self._path).st_size  # noqa: PTH116

    def read(self) -> bool:
        """Write the metrics of the next piece of the log; return whether there was one."""
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                file.seek(self._position)
                chunk = file.read(min(_READ_BYTES, max(0, self._end - self._position)))
        except OSError:
            return False
        self._position += len(chunk)
        lines, _, self._partial = (self._partial + chunk).rpartition(b"\n")
        self._write(self._with_states(lines) if self.states else lines)
        return bool(chunk)

    def _with_states(self, lines: bytes) -> bytes:
        """Return lines of the log, and before each of them the states that are not newer."""
        ordered = []
        for line in lines.split(b"\n"):
            stamp = line[:STAMP_CHARS]
            while self.states and stamp[-2:] == b"Z " and self.states[0][:STAMP_CHARS] <= stamp:
                ordered.append(self.states.pop(0))
                self._known -= 1
            ordered.append(line)
        return b"\n".join(ordered)

    def take_known(self) -> None:
        """Take the states before which all lines were read."""
        known, self.states = self.states[: max(0, self._known)], self.states[max(0, self._known) :]
        self._write(b"\n".join(known))

    def finish(self) -> None:
        """Write the metrics of a last line without its end: nobody writes any more."""
        self._write(b"\n".join([*self.states, self._partial]))

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
    # Unbuffered: what is read beyond the first line would be missing below.
    source = open(0, "rb", buffering=0)  # noqa: SIM115
    request = json.loads(source.readline())
    finder = Finder(request["definitions"])

    def watch(_: int, __: FrameType | None) -> None:
        finder.watch()

    # The `re` module looks for signals during a search. Processor time: a machine that computes is no slow pattern.
    signal.signal(signal.SIGPROF, watch)
    signal.setitimer(signal.ITIMER_PROF, _SEARCH_SECONDS, _SEARCH_SECONDS)
    logs = {host: _Log(request["logs"], host, begin, finder) for host, begin in request["hosts"].items()}
    over, partial = False, b""
    while not over:
        # In this order: the line that ends a progress bar is read after all states of the bar. An input that ends
        # between the two is still at its end in the next round, when all of the logs is written.
        states, over = _read(source, _LOOK_SECONDS)
        partial = _hand_out(partial + states, logs)
        for log in logs.values():
            log.look()
        partial = _hand_out(partial + _read(source, 0.0)[0], logs)
        # One piece of each at a time, so that no host waits for another's backlog.
        while [log for log in logs.values() if log.read()]:
            pass
        for log in logs.values():
            log.take_known()
    for log in logs.values():
        log.finish()
    # The controller, which writes the notes into the log, may have been killed.
    with suppress(BrokenPipeError):
        os.write(1, "".join(f"{note}\n" for note in finder.notes(list(logs))).encode(errors="replace"))


def _hand_out(states: bytes, logs: Mapping[str, _Log]) -> bytes:
    """Give each line to the log of its host, and return the beginning of the last line."""
    *lines, rest = states.split(b"\n")
    for line in lines:
        if log := logs.get(split_line(line[STAMP_CHARS:])[0] or ""):
            log.states.append(line)
    return rest


def _read(source: FileIO, seconds: float) -> tuple[bytes, bool]:
    """Return all that comes within some seconds, and whether the input is over."""
    content, until = b"", time.monotonic() + seconds
    while select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
        chunk = source.read(_READ_BYTES)
        if not chunk:
            return content, True
        content += chunk
    return content, False


if __name__ == "__main__":
    main()
