"""Tables in HTML, in which notebooks show plans, estimators and jobs. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from herringbone.planning.shown import is_internal

_STYLE = "text-align:left;vertical-align:top;white-space:pre-wrap"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns under a title; texts are escaped.

    >>> html_table("JobPlan", [("name", "a<b")])[:32]
    '<table><caption style="text-alig'
    """
    lines = [f'<table><caption style="{_STYLE}"><b>{html.escape(title)}</b></caption>']
    for label, text in rows:
        name, value = html.escape(label), html.escape(text)
        lines.append(f'<tr><th style="{_STYLE}">{name}</th><td style="{_STYLE}">{value}</td></tr>')
    return "\n".join([*lines, "</table>"])


def job_html(description: Mapping[str, Any]) -> str:
    """Return a job's table, from the description that `TrainingJob.describe` returns."""
    name = description["TrainingJobName"]
    rows = [("status", f"{description['TrainingJobStatus']} ({description['SecondaryStatus']})")]
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
    return html_table(f"TrainingJob {name}", rows)
