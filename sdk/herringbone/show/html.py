"""Tables in HTML for notebooks. Pure: texts in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable

from herringbone.show.charts import escaped

_STYLE = "text-align:left;vertical-align:top;white-space:pre-wrap"


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of two columns under a title; texts are escaped.

    >>> html_table("JobPlan", [("name", "a<b")])[:32]
    '<table><caption style="text-alig'
    """
    return table_of_cells(title, ((label, escaped(text)) for label, text in rows))


def table_of_cells(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table; titles and labels are escaped here, the second column is HTML."""
    lines = [f'<table><caption style="{_STYLE}"><b>{escaped(title)}</b></caption>']
    lines += [
        f'<tr><th style="{_STYLE}">{escaped(label)}</th><td style="{_STYLE}">{cell}</td></tr>' for label, cell in rows
    ]
    return "\n".join([*lines, "</table>"])
