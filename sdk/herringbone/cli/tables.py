"""Tables of the command line."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, every column as wide as its widest cell; the first row holds the titles.

    >>> aligned([("NAME", "MB"), ("a", "1139")])
    ['NAME  MB', 'a     1139']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The last column is padded like the others, hence the rstrip.
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
