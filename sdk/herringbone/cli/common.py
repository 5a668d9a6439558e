"""Code that several verbs share: exit codes, the flag `--on-interrupt`, and tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from herringbone.jobs.index import COMPLETED, FAILED, MAX_RUNTIME_EXCEEDED
from herringbone.jobs.interrupt import CHOICES

# 2 is argparse's own code. 130 is the shell's code for a program that SIGINT ended: 128 + 2.
OK, JOB_FAILED, USAGE, STOPPED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 130
_ENDS = {COMPLETED: OK, FAILED: JOB_FAILED, MAX_RUNTIME_EXCEEDED: TIMED_OUT, "MaxWaitTimeExceeded": TIMED_OUT}


def exit_code(secondary_status: str) -> int:
    """Return the exit code of a command that waited for a job, from the secondary status of the job's end.

    >>> exit_code("Completed"), exit_code("Stopped"), exit_code("MaxRuntimeExceeded")
    (0, 3, 4)
    """
    return _ENDS.get(secondary_status, STOPPED)


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
