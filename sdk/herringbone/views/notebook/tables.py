"""The table in HTML in which notebooks show a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone.events.tables import MOST_METRICS, metric_rows
from herringbone.plan.shown import is_internal
from herringbone.show.charts import escaped, progress_bar
from herringbone.show.html import table_of_cells

if TYPE_CHECKING:
    from herringbone.events.view import JobView, Progress


def job_html(description: Mapping[str, Any], view: JobView | None = None) -> str:
    """Return a job's table, from the description that `TrainingJob.describe` returns, and from its events."""
    name = description["TrainingJobName"]
    rows = [("status", f"{description['TrainingJobStatus']} ({description['SecondaryStatus']})")]
    pictures = [] if view is None else [*_progress_rows(view), *metric_rows(view.series.values())]
    if not pictures:
        pictures = [
            (str(metric["MetricName"]), escaped(str(metric["Value"])))
            for metric in (description.get("FinalMetricDataList") or ())[:MOST_METRICS]
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
    return table_of_cells(f"TrainingJob {name}", [texts[0], *pictures, *texts[1:]])


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
