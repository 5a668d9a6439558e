"""Code that several verbs share: the flag `--on-interrupt`, and tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from herringbone.jobs.interrupt import CHOICES


def add_on_interrupt(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the flag that decides what Ctrl-C does to the job; `run` and `logs` have it."""
    default_text = default or "stop; on ml.* ask, and detach where there is no terminal"
    # None as the default, because each backend has a default of its own.
    parser.add_argument(
        "--on-interrupt",
        choices=CHOICES,
        default=default,
        help=f"what Ctrl-C does to the job (default: {default_text})",
    )


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row, every column as wide as its widest cell; the first row holds the titles.

    >>> aligned([("NAME", "MB"), ("a", "1139")])
    ['NAME  MB', 'a     1139']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The last column is padded like the others, hence the rstrip.
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
