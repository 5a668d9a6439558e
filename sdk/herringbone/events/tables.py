"""A job's metrics as a table in HTML, each with its course. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from herringbone.events.summary import in_order
from herringbone.events.view import NO_STEP
from herringbone.show.charts import chart
from herringbone.show.html import table_of_cells

if TYPE_CHECKING:
    from herringbone.events.view import Series

MOST_METRICS = 20


def metric_rows(series: Iterable[Series]) -> list[tuple[str, str]]:
    """Return a row for each metric, the loss first; of several ranks that log one, the lowest rank's."""
    by_name: dict[str, Series] = {}
    for one in series:
        if one.values and (one.name not in by_name or _order(one) < _order(by_name[one.name])):
            by_name[one.name] = one
    return [(name, _metric_cell(by_name[name])) for name in in_order(by_name)[:MOST_METRICS]]


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
    rows = metric_rows(series)
    return table_of_cells("Metrics", rows or [("no metrics", "the job has logged none so far")])
