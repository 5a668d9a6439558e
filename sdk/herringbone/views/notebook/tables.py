"""The table in HTML in which notebooks show a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone.events.summary import summary_of
from herringbone.events.tables import MOST_METRICS, metric_rows
from herringbone.plan.shown import is_internal
from herringbone.show.charts import escaped, progress_bar
from herringbone.show.html import table_of_cells

if TYPE_CHECKING:
    from herringbone.events.view import JobView


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
    summary = summary_of(view, running=False, now=0.0)
    if not summary.done_text:
        return []
    done = escaped(summary.done_text)
    return [("progress", done if summary.fraction is None else f"{progress_bar(summary.fraction)} &nbsp; {done}")]
