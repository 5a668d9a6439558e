"""Rows for people to read."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, every column as wide as its widest cell; the first row is the head.

    >>> aligned([("NAME", "MB"), ("a", "1139")])
    ['NAME  MB', 'a     1139']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
