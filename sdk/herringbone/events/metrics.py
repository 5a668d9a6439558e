"""The metrics of jobs: read from their events, summed up, and set side by side.

events -> job_metrics -> Metrics, columns of values -> summarize -> Summary per metric -> comparison, csv_lines

Jobs of older releases have no events; their metrics are found in their log files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from herringbone.events.columns import Columns, Metrics, read_files
from herringbone.events.from_log import Finder, HostMetrics, find_metrics
from herringbone.events.kinds import NO_STEP
from herringbone.events.series import Summary, Value, summarize
from herringbone.events.source import FileEvents
from herringbone.records.differences import differences
from herringbone.records.logs import FileLogs, Metric
from herringbone.show.cells import shown_number
from herringbone.system.texts import NONE
from herringbone_contract.errors import InputError
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.plan.options.typed import MetricDefinition
    from herringbone.protocols.backend import Backend, LogSource
    from herringbone.records.index import JobRecord

_READ_BYTES = 1 << 20


def job_metrics(record: JobRecord, backend: Backend) -> Metrics:
    """Return the metrics of a job so far, from its events, or from its log if an older release ran it."""
    with closing(backend.events(record.name)) as source:
        if isinstance(source, FileEvents):
            metrics, has_events = read_files(source.paths)
        else:
            columns, has_events = Columns(), False
            for events in source.rest(record.ended) if record.done else iter(source.read, []):
                has_events = True
                for event in events:
                    columns.take(event)
            metrics = columns.metrics
    if has_events:
        return metrics
    with closing(backend.logs(record.name)) as log:
        return Metrics.of(metrics_in_log(record, log))


def definitions_of(record: JobRecord) -> tuple[MetricDefinition, ...]:
    """Return the metric definitions of a job's plan."""
    import msgspec

    from herringbone.plan.options.typed import MetricDefinition

    # Of the stored plan only this member is needed, which a plan of another release has as well.
    stored = record.plan_dict.get("options", {}).get("metric_definitions", ())
    return msgspec.convert(stored, tuple[MetricDefinition, ...])


def metrics_in_log(record: JobRecord, source: LogSource) -> list[Metric]:
    """Return the metrics in a job's log so far; `source` is the log, of which nothing has been read."""
    finder = Finder.of(definitions_of(record))
    if isinstance(source, FileLogs):
        return metrics_in_files(source.paths, finder, over=record.done)
    batches = source.rest(record.ended) if record.done else iter(source.read, [])
    return find_metrics((line for lines in batches for line in lines), finder)


def metrics_in_files(files: Iterable[Path], finder: Finder, *, over: bool) -> list[Metric]:
    """Return the metrics in the log files of all hosts, by time; `over` says that nobody writes to them any more.

    >>> metrics_in_files([], Finder([]), over=True)
    []
    """
    metrics: list[Metric] = []
    for path in files:
        host = HostMetrics(path.stem, finder)
        for lines in _pieces(path, over=over):
            metrics += host.take(lines)
    return sorted(metrics, key=lambda metric: metric.time)


def _pieces(path: Path, *, over: bool) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        partial = b""
        while chunk := file.read(_READ_BYTES):
            lines, _, partial = (partial + chunk).rpartition(b"\n")
            yield lines
        # The rest of the last line may still come, and with it the rest of a number.
        if over:
            yield partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job in a comparison: its name, state, start, settings and the summaries of its metrics."""

    name: str
    status: str
    started: datetime | None
    settings: Mapping[str, str]
    metrics: Mapping[str, Summary]


def final_metrics(metrics: Metrics) -> list[dict[str, Any]]:
    """Return the last value of each metric as `FinalMetricDataList` of DescribeTrainingJob."""
    return [
        {
            "MetricName": printable(name),
            "Value": json_number(summary.last.value),
            "Timestamp": summary.last.time.isoformat(),
        }
        for name, summary in summarize(metrics.series).items()
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
    """Return the rows of two tables with a column for each run: settings that differ, and metrics.

    Metrics have their last value. With `best`, the named metric has its best value, and the best run comes first. The
    first row of each table has the titles; the first table is empty when no setting differs. Raises `InputError`
    for a metric that no run has.
    """
    if best is not None:
        runs = _best_first(runs, *best)
    titles = ("", *(run.name for run in runs))
    differing = differences([run.settings for run in runs])
    metrics: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        chosen = best[0] if best is not None and best[1] == name else "last"
        label = name if chosen == "last" else f"{name} ({chosen})"
        metrics.append((label, *(_cell(run, name, chosen) for run in runs)))
    return [[("SETTING", *titles[1:]), *differing] if differing else [], [("METRIC", *titles[1:]), *metrics]]


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
        return NONE
    value = {"last": summary.last, "min": summary.least, "max": summary.most}[which]
    # More digits than in views of one job, so that near runs differ.
    return _shown(value, run.started, f"{value.value:g}")


def _shown(value: Value, started: datetime | None, number: str | None = None) -> str:
    after = "" if started is None else f", {shown_after(value.time, started)}"
    return f"{number or shown_number(value.value)} (#{value.number}{after})"


def shown_after(time: datetime, started: datetime) -> str:
    """Return how long after the start of its job a value came; never negative, for clocks of machines differ.

    >>> shown_after(datetime(2026, 1, 1), datetime(2026, 1, 1, microsecond=30_000))
    '0.0 s'
    """
    return f"{max(0.0, (time - started).total_seconds()):.1f} s"


def csv_lines(jobs: Mapping[str, Metrics]) -> Iterator[str]:
    """Yield the lines of a CSV file with one line per value, the titles first.

    >>> list(csv_lines({"a": Metrics()}))
    ['job,metric,number,value,time,host,rank,step,source']
    """
    yield "job,metric,number,value,time,host,rank,step,source"
    for job, metrics in jobs.items():
        # Only texts may need quotes, and there are few of them.
        named = {series: _csv(job, series.name) for series in metrics.series}
        ends = {
            series: ("" if series.rank is None else str(series.rank), _csv(series.source)) for series in metrics.series
        }
        hosts = {series: _csv(series.host) for series in metrics.series}
        for series, position in metrics.numbered():
            rank, source = ends[series]
            time = datetime.fromtimestamp(series.times[position], timezone.utc).isoformat()
            step = series.steps[position] if series.steps else NO_STEP
            yield (
                f"{named[series]},{position + 1},{series.values[position]!r},{time},{hosts[series]},{rank},"
                f"{'' if step < 0 else step},{source}"
            )


def _csv(*cells: object) -> str:
    # Imported here: every job loads this module.
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()
