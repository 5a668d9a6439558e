"""Exit codes, and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable

import click

from herringbone.cli.commands import Decorated
from herringbone.jobs.interrupt import CHOICES

# 2 is the code of mistakes in most commands. 130 is the shell's code for a program that SIGINT ended: 128 + 2.
OK, JOB_FAILED, USAGE, STOPPED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 130
# SageMaker's words. Not the constants of `jobs.index`, whose import loads sqlite.
_ENDS = {"Completed": OK, "Failed": JOB_FAILED, "MaxRuntimeExceeded": TIMED_OUT, "MaxWaitTimeExceeded": TIMED_OUT}


def exit_code(secondary_status: str) -> int:
    """Return the exit code of a command that waited for a job, from the secondary status of the job's end.

    >>> exit_code("Completed"), exit_code("Stopped"), exit_code("MaxRuntimeExceeded")
    (0, 3, 4)
    """
    return _ENDS.get(secondary_status, STOPPED)


def on_interrupt_option(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds the flag for what Ctrl-C does to the job; `run` and `logs` have it."""
    default_text = default or "stop; on ml.* ask, and detach where there is no terminal"
    # None as the default, because each backend has a default of its own.
    return click.option(
        "--on-interrupt",
        type=click.Choice(CHOICES),
        default=default,
        help=f"what Ctrl-C does to the job (default: {default_text})",
    )
