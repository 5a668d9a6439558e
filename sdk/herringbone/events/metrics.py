"""The metrics of jobs: found in log files fast, summed up, and set side by side.

log files -> metrics_in_files -> Metric per value -> summarize -> Summary per metric -> comparison, csv_lines
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from herringbone.jobs.logs import STAMP_CHARS, FileLogs, LogLine, Metric, find_metrics, parse_line
from herringbone_contract import mllog
from herringbone_contract.constants import split_line
from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource
    from herringbone.estimators.options import MetricDefinition
    from herringbone.jobs.index import JobRecord

_MARK = mllog.PREFIX.encode()
# Hyperparameters that steer the container, not the script.
_STEERING = "sagemaker_"


def metrics_of(record: JobRecord, source: LogSource) -> list[Metric]:
    """Return the metrics in a job's log so far; `source` is the log, of which nothing has been read."""
    import msgspec

    from herringbone.estimators.options import MetricDefinition

    # Of the stored plan only this member is needed, which a plan of another release has as well.
    stored = record.plan_dict.get("options", {}).get("metric_definitions", ())
    definitions = msgspec.convert(stored, tuple[MetricDefinition, ...])
    if isinstance(source, FileLogs):
        return metrics_in_files(source.paths, definitions, over=record.done)
    batches = source.rest(record.ended) if record.done else iter(source.read, [])
    return find_metrics((line for lines in batches for line in lines), definitions)


def metrics_in_files(files: Iterable[Path], definitions: Sequence[MetricDefinition], *, over: bool) -> list[Metric]:
    """Return what `find_metrics` finds in the log files of all hosts; `over` says that nobody writes to them any more.

    >>> metrics_in_files([], [], over=True)
    []

    Only lines that may hold a value are parsed, which takes a tenth of the time.
    """
    is_candidate = _candidates(definitions)
    hosts = [_lines(path, is_candidate, over=over) for path in files]
    return find_metrics(heapq.merge(*hosts, key=lambda line: line.time), definitions)


def _candidates(definitions: Sequence[MetricDefinition]) -> Callable[[bytes], bool]:
    patterns = [re.compile(definition.regex) for definition in definitions]

    def is_candidate(line: bytes) -> bool:
        if _MARK in line:
            return True
        if not patterns:
            return False
        # A line without a time stamp is all text.
        text = split_line(line[STAMP_CHARS:])[2] if _is_stamped(line) else line
        decoded = text.decode("utf-8", "replace")
        return any(pattern.search(decoded) for pattern in patterns)

    return is_candidate


def _lines(path: Path, is_candidate: Callable[[bytes], bool], *, over: bool) -> Iterator[LogLine]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        stamped = b""
        for raw in file:
            # The rest of the last line may still come, and with it the rest of a number.
            if not over and not raw.endswith(b"\n"):
                return
            line = raw.removesuffix(b"\n")
            if _is_stamped(line):
                stamped = line
            if is_candidate(line):
                parsed = parse_line(line, path.stem)
                # A line without a time stamp has the time of the one before it.
                yield parsed if stamped is line else replace(parsed, time=parse_line(stamped, path.stem).time)


def _is_stamped(line: bytes) -> bool:
    return line[STAMP_CHARS - 2 : STAMP_CHARS] == b"Z "


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a metric: `number` counts the values of the same rank, from 1."""

    value: float
    number: int
    time: datetime


@dataclass(frozen=True, slots=True)
class Summary:
    """All values of one metric of one job: how many, the last one, the smallest and the largest.

    Of equal values the first one counts.
    """

    count: int
    last: Value
    least: Value
    most: Value


def numbered(metrics: Iterable[Metric]) -> Iterator[tuple[Metric, int]]:
    """Yield each value of a metric with its number among the values of its rank, from 1."""
    counts: Counter[tuple[str, str, int | None]] = Counter()
    for metric in metrics:
        key = (metric.name, metric.host, metric.rank)
        counts[key] += 1
        yield metric, counts[key]


def summarize(metrics: Iterable[Metric]) -> dict[str, Summary]:
    """Return a summary of each metric by name, in the order in which the metrics first appear.

    >>> summarize(job.metrics())["loss"].least.value                 # doctest: +SKIP
    0.125
    """
    values: dict[str, list[Value]] = {}
    for metric, number in numbered(metrics):
        values.setdefault(metric.name, []).append(Value(metric.value, number, metric.time))
    return {name: _summary(found) for name, found in values.items()}


def _summary(values: Sequence[Value]) -> Summary:
    # NaN compares with nothing, and is neither the smallest nor the largest unless there is nothing else.
    comparable = [value for value in values if value.value == value.value] or values

    def by_value(value: Value) -> float:
        return value.value

    return Summary(len(values), values[-1], min(comparable, key=by_value), max(comparable, key=by_value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job in a comparison: its name, state, start, hyperparameters and the summaries of its metrics."""

    name: str
    status: str
    started: datetime | None
    hyperparameters: Mapping[str, str]
    metrics: Mapping[str, Summary]


def final_metrics(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Return the last value of each metric as `FinalMetricDataList` of DescribeTrainingJob."""
    return [
        {"MetricName": name, "Value": json_number(summary.last.value), "Timestamp": summary.last.time.isoformat()}
        for name, summary in summarize(metrics).items()
    ]


def json_number(value: float) -> float | str:
    """Return a number as JSON can hold it: as a word when it is not finite.

    >>> json_number(0.5), json_number(float("nan"))
    (0.5, 'nan')
    """
    return value if math.isfinite(value) else str(value)


def one_run(run: Run) -> list[tuple[str, ...]]:
    """Return the rows of a table with the last, smallest and largest value of each metric; the first row has titles."""
    rows: list[tuple[str, ...]] = [("METRIC", "LAST", "MIN", "MAX", "VALUES")]
    for name, summary in run.metrics.items():
        cells = (_shown(value, run.started) for value in (summary.last, summary.least, summary.most))
        rows.append((name, *cells, str(summary.count)))
    return rows


def comparison(
    runs: Sequence[Run], best: tuple[Literal["max", "min"], str] | None = None
) -> list[list[tuple[str, ...]]]:
    """Return the rows of two tables with a column for each run: hyperparameters that differ, and metrics.

    Metrics have their last value. With `best`, the named metric has its best value, and the best run comes first. The
    first row of each table has the titles; the first table is empty when no hyperparameter differs. Raises `InputError`
    for a metric that no run has.
    """
    if best is not None:
        runs = _best_first(runs, *best)
    titles = ("", *(run.name for run in runs))
    names = dict.fromkeys(name for run in runs for name in run.hyperparameters if not name.startswith(_STEERING))
    settings = [(name, *(_plain(run.hyperparameters.get(name)) for run in runs)) for name in names]
    differing = [row for row in settings if len(set(row[1:])) > 1]
    metrics: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        chosen = best[0] if best is not None and best[1] == name else "last"
        label = name if chosen == "last" else f"{name} ({chosen})"
        metrics.append((label, *(_cell(run, name, chosen) for run in runs)))
    return [[("HYPERPARAMETER", *titles[1:]), *differing] if differing else [], [("METRIC", *titles[1:]), *metrics]]


def _best_first(runs: Sequence[Run], which: Literal["max", "min"], metric: str) -> list[Run]:
    known = dict.fromkeys(name for run in runs for name in run.metrics)
    if metric not in known:
        names = ", ".join(known) or "none"
        raise InputError(f"--best {which} {metric}: no run here has a metric of that name; there is: {names}")

    def rank(run: Run) -> tuple[bool, float]:
        summary = run.metrics.get(metric)
        if summary is None:
            return True, 0.0
        return False, -summary.most.value if which == "max" else summary.least.value

    return sorted(runs, key=rank)


def _cell(run: Run, name: str, which: str) -> str:
    summary = run.metrics.get(name)
    if summary is None:
        return "-"
    return _shown({"last": summary.last, "min": summary.least, "max": summary.most}[which], run.started)


def _shown(value: Value, started: datetime | None) -> str:
    after = "" if started is None else f", {(value.time - started).total_seconds():.1f} s"
    return f"{value.value:g} (#{value.number}{after})"


def _plain(value: str | None) -> str:
    """Return a hyperparameter as the user wrote it: texts are stored as JSON."""
    if value is None:
        return "-"
    try:
        decoded = json.loads(value)
    except ValueError:
        return value
    return decoded if isinstance(decoded, str) else value


def csv_lines(jobs: Mapping[str, Iterable[Metric]]) -> Iterator[str]:
    """Yield the lines of a CSV file with one line per value, the titles first.

    >>> list(csv_lines({"a": []}))
    ['job,metric,number,value,time,host,rank']
    """
    yield _csv("job", "metric", "number", "value", "time", "host", "rank")
    for job, metrics in jobs.items():
        for metric, number in numbered(metrics):
            rank = "" if metric.rank is None else metric.rank
            yield _csv(job, metric.name, number, repr(metric.value), metric.time.isoformat(), metric.host, rank)


def _csv(*cells: object) -> str:
    # Imported here: every job loads this module.
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
