"""Tables of the command line: plain columns for pipes, and colours and rows that fit the width for terminals."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from herringbone.system.texts import ELLIPSIS, shortened
from herringbone_contract.masking import printable

_LEAST_SHORTENED = 16
# rich needs more than a millisecond a row.
_MOST_DRAWN = 500


def show_table(
    rows: Sequence[tuple[str, ...]],
    *,
    shorten: int = 0,
    cut: int | None = None,
    styles: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Write a table, whose first row holds the titles.

    >>> show_table([("NAME", "MB"), ("a", "1139")], stream=sys.stdout)
    NAME  MB
    a     1139

    On a terminal that is too narrow, the column `cut` loses its ends and the column `shorten` its middles. `styles`
    maps a whole cell to its style, such as "red". A pipe gets every cell whole and without colours.
    """
    stream = sys.stdout if stream is None else stream
    # No cell is text of ours alone: names and reasons of failures come from users, logs and services.
    cells = [tuple(map(printable, row)) for row in rows]
    if not stream.isatty() or len(rows) > _MOST_DRAWN:
        stream.writelines(f"{line}\n" for line in aligned(cells))
        return
    # Imported here: it takes longer than all else that a verb needs.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    cells = _fitted(cells, console.width, shorten=shorten, cut=cut)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in cells[0]:
        table.add_column(Text(title), no_wrap=True, overflow="ellipsis")
    for row in cells[1:]:
        # Text, not str: rich would read brackets in a str as markup.
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    console.print(table)


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, every column as wide as its widest cell; the first row holds the titles.

    >>> aligned([("NAME", "MB"), ("a", "1139")])
    ['NAME  MB', 'a     1139']
    """
    widths = _widths(rows)
    # The last column is padded like the others, hence the rstrip.
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _fitted(rows: Sequence[tuple[str, ...]], width: int, *, shorten: int, cut: int | None) -> list[tuple[str, ...]]:
    """Return rows with shorter cells where the table is wider than `width`. Pure."""
    widths = _widths(rows)
    missing = sum(widths) + 2 * (len(widths) - 1) - width
    # First the reason down to a third of the line, then the name, then the rest of the reason.
    for column, least in ((cut, width // 3), (shorten, _LEAST_SHORTENED), (cut, 1)):
        if column is None or missing <= 0:
            continue
        column_width = max(widths[column] - missing, min(widths[column], least))
        missing -= widths[column] - column_width
        widths[column] = column_width
    return [
        tuple((shortened if at == shorten else _ended)(cell, widths[at]) for at, cell in enumerate(row)) for row in rows
    ]


def _ended(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + ELLIPSIS


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
