"""Tables in HTML for notebooks. Pure: texts in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def table_of_rows(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table of any number of columns, whose first row holds the titles; texts are escaped."""
    lines = [f'<table><caption style="{_STYLE}"><b>{escaped(title)}</b></caption>']
    for number, row in enumerate(rows):
        name = "td" if number else "th"
        lines.append("<tr>" + "".join(f'<{name} style="{_STYLE}">{escaped(cell)}</{name}>' for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def page_of_tables(title: str, tables: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Return a page of tables as one file, which loads nothing and runs no script."""
    body = "\n".join(table_of_rows(name, rows) for name, rows in tables)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)} · Herringbone</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }}
table {{ border-collapse: collapse; margin-bottom: 2rem; width: 100% }}
th, td {{ border-bottom: 1px solid #8886; padding: .3rem .8rem .3rem 0 }}</style>
</head>
<body>
<h1>{escaped(title)}</h1>
{body}
</body>
</html>
"""
