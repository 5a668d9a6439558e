"""Lines about a job for who waits for it: before it starts, its first one and its last."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone.records.home import find_home
from herringbone.records.index import COMPLETED, STOPPED
from herringbone.show.console import Console

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.records.index import JobRecord


def start_line(name: str, backend: str) -> str:
    """Return the first line of a job.

    >>> start_line("digits-1", "local_process")
    'job digits-1: starting on local_process (follow it elsewhere: herringbone logs -f digits-1)'
    """
    return f"job {name}: starting on {backend} (follow it elsewhere: herringbone logs -f {name})"


def end_line(record: JobRecord, *, seconds: float, model: str | None, checkpoints: str | None) -> str | None:
    """Return the last line of a job that completed or was stopped; None for all others, whose failure is the last line.

    `model` and `checkpoints` are addresses. Checkpoints are named for a stopped job: it can go on from them.
    """
    if record.status not in (COMPLETED, STOPPED):
        return None
    parts = [f"job {record.name}: {record.status} after {seconds:.1f} s"]
    parts.append(f"model: {model}" if model is not None else "no model")
    if record.status == STOPPED and checkpoints is not None:
        parts.append(f"checkpoints: {checkpoints}")
    return ", ".join(parts)


def kept_checkpoints(record: JobRecord) -> str | None:
    """Return where the checkpoints of a job are: `checkpoint_s3_uri`, or a folder of the job; None without any."""
    from herringbone.records.description import checkpoint_folders

    plan = record.plan_dict
    if uri := plan.get("options", {}).get("checkpoint_s3_uri"):
        return str(uri)
    for kept in checkpoint_folders(plan, find_home().job(record.name)).values():
        # Containers may leave folders that only root can read.
        with contextlib.suppress(OSError):
            if any(kept.iterdir()):
                return str(kept)
    return None


def say_before(plan: JobPlan) -> None:
    """Show the notes of a job's plan."""
    for note in plan.notes:
        say_of(plan)(note)


def say_start(plan: JobPlan) -> None:
    """Show the first line of a job, which exists by now: a submission that fails has none to follow."""
    # The job runs: a full disk or a pipe without a reader must not take its caller from it.
    with contextlib.suppress(OSError):
        Console(sys.stderr).say(start_line(plan.job_name, plan.backend))


def say_of(plan: JobPlan) -> Callable[[str], None]:
    """Return the function that shows a note about a job that has not started."""
    # On standard error: the log, or a program's own output, may be on standard output.
    return lambda note: Console(sys.stderr).say(f"job {plan.job_name}: {note}")
