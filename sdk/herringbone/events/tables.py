"""A job's metrics as a table in HTML, each with its course. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from herringbone.events.kinds import NO_STEP
from herringbone.events.series import Series, by_name, metric_summary
from herringbone.events.summary import in_order
from herringbone.show.cells import shown_number
from herringbone.show.charts import chart
from herringbone.show.html import table_of_cells

MOST_METRICS = 20


def metric_rows(series: Iterable[Series]) -> list[tuple[str, str]]:
    """Return a row for each metric, the loss first: the course of the lowest rank, and the summary of all ranks."""
    named = by_name(one for one in series if one.values)
    return [(name, _metric_cell(named[name])) for name in in_order(named)[:MOST_METRICS]]


def _metric_cell(found: Sequence[Series]) -> str:
    shown, summary = found[0], metric_summary(found)
    extremes = ""
    if summary.count > 1 and math.isfinite(summary.least.value):
        extremes = f" &nbsp; min {shown_number(summary.least.value)}, max {shown_number(summary.most.value)}"
    at = "" if summary.last.step is None else f" at step {summary.last.step}"
    picture = chart(shown.name, shown.values, () if NO_STEP in shown.steps else shown.steps)
    value = f"{shown_number(summary.last.value)}{at}{extremes}, {summary.count} values"
    return f"{picture}{'<br/>' if picture else ''}{value}"


def metrics_html(series: Iterable[Series]) -> str:
    """Return the table of a job's metrics, each with its course.

    >>> metrics_html([]).count("no metrics")
    1
    """
    rows = metric_rows(series)
    return table_of_cells("Metrics", rows or [("no metrics", "the job has logged none so far")])
