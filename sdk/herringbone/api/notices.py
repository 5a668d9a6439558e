"""Lines about a job that `fit` shows before the job starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone.api.ends import start_line
from herringbone.show.console import Console

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan


def say_before(plan: JobPlan, *, show_start: bool) -> None:
    """Show the job's first line, if wanted, and the notes of its plan."""
    if show_start:
        Console(sys.stderr).say(start_line(plan.job_name, plan.backend))
    for note in plan.notes:
        say_of(plan)(note)


def say_of(plan: JobPlan) -> Callable[[str], None]:
    """Return the function that shows a note about a job that has not started."""
    # On standard error: the log, or a program's own output, may be on standard output.
    return lambda note: Console(sys.stderr).say(f"job {plan.job_name}: {note}")
