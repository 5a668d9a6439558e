"""Tables in HTML, in which notebooks show plans, estimators, jobs and metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from herringbone.events.view import NO_STEP
from herringbone.notebook.charts import chart, escaped, progress_bar
from herringbone.planning.shown import is_internal
from herringbone.top.rows import chosen_metric

if TYPE_CHECKING:
    from herringbone.events.view import JobView, Progress, Series

_MOST_METRICS = 20
_STYLE = "text-align:left;vertical-align:top;white-space:pre-wrap"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns under a title; texts are escaped.

    >>> html_table("JobPlan", [("name", "a<b")])[:32]
    '<table><caption style="text-alig'
    """
    return _table(title, ((label, escaped(text)) for label, text in rows))


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table; titles and labels are escaped here, the second column is HTML."""
    lines = [f'<table><caption style="{_STYLE}"><b>{escaped(title)}</b></caption>']
    lines += [
        f'<tr><th style="{_STYLE}">{escaped(label)}</th><td style="{_STYLE}">{cell}</td></tr>' for label, cell in rows
    ]
    return "\n".join([*lines, "</table>"])


def job_html(description: Mapping[str, Any], view: JobView | None = None) -> str:
    """Return a job's table, from the description that `TrainingJob.describe` returns, and from its events."""
    name = description["TrainingJobName"]
    rows = [("status", f"{description['TrainingJobStatus']} ({description['SecondaryStatus']})")]
    pictures = [] if view is None else [*_progress_rows(view), *_metric_rows(view.series.values())]
    if not pictures:
        pictures = [
            (str(metric["MetricName"]), escaped(str(metric["Value"])))
            for metric in (description.get("FinalMetricDataList") or ())[:_MOST_METRICS]
        ]
    for label, key in (("started", "TrainingStartTime"), ("ended", "TrainingEndTime")):
        if description.get(key) is not None:
            rows.append((label, str(description[key])))
    if model := description.get("ModelArtifacts"):
        rows.append(("model", str(model["S3ModelArtifacts"])))
    if failure := description.get("FailureReason"):
        rows.append(("failure", str(failure)))
    values = description.get("HyperParameters") or {}
    rows += [("hyperparameter", f"{key} = {values[key]}") for key in sorted(values) if not is_internal(key)]
    rows.append(("log", f"herringbone logs {name}"))
    texts = [(label, escaped(text)) for label, text in rows]
    # The status, then what moves, then what stays.
    return _table(f"TrainingJob {name}", [texts[0], *pictures, *texts[1:]])


def _progress_rows(view: JobView) -> list[tuple[str, str]]:
    if (progress := view.progress) is None:
        return []
    done = escaped(progress_text(progress))
    return [("progress", done if progress.fraction is None else f"{progress_bar(progress.fraction)} &nbsp; {done}")]


def progress_text(progress: Progress) -> str:
    """Return what has been done of how much.

    >>> from herringbone.events.view import Progress
    >>> progress_text(Progress(120, 480, "step", None, 0.0)), progress_text(Progress(3, None, "epoch", None, 0.0))
    ('120 of 480 step', '3 epoch')
    """
    of = "" if progress.total is None else f" of {progress.total:g}"
    return f"{progress.done:g}{of} {progress.unit}".rstrip()


def _metric_rows(series: Iterable[Series]) -> list[tuple[str, str]]:
    """Return a row for each metric, the loss first; of several ranks that log one, the lowest rank's."""
    by_name: dict[str, Series] = {}
    for one in series:
        if one.values and (one.name not in by_name or _order(one) < _order(by_name[one.name])):
            by_name[one.name] = one
    first = chosen_metric(by_name, None)
    return [
        (name, _metric_cell(by_name[name])) for name in sorted(by_name, key=lambda name: name != first)[:_MOST_METRICS]
    ]


def _order(series: Series) -> int:
    return -1 if series.rank is None else series.rank


def _metric_cell(series: Series) -> str:
    values = series.values
    steps: Sequence[int] = () if NO_STEP in series.steps else series.steps
    finite = [value for value in values if math.isfinite(value)]
    extremes = f" &nbsp; min {min(finite):.4g}, max {max(finite):.4g}" if len(finite) > 1 else ""
    at = f" at step {steps[-1]}" if len(steps) else ""
    picture = chart(series.name, values, steps)
    return f"{picture}{'<br/>' if picture else ''}{values[-1]:.4g}{at}{extremes}, {len(values)} values"


def metrics_html(series: Iterable[Series]) -> str:
    """Return the table of a job's metrics, each with its course.

    >>> metrics_html([]).count("no metrics")
    1
    """
    rows = _metric_rows(series)
    return _table("Metrics", rows or [("no metrics", "the job has logged none so far")])
