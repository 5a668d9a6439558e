"""Leave a job to a process of its own, which waits in the lines of the job's machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from herringbone.backends.detached import blocked, search_path
from herringbone.plan.plan import plan_to_send
from herringbone.records.index import PENDING, JobIndex
from herringbone.records.job_events import JobEvents
from herringbone.slots.claim import new_mark
from herringbone.slots.pending import deadline_of, handed_to
from herringbone.system.descriptors import CONTROLLER_SIGNALS
from herringbone.system.processes import identity

if TYPE_CHECKING:
    from herringbone.backends.ssh.upload import PackedCode
    from herringbone.plan.plan import JobPlan
    from herringbone.records.home import Home

_WAITER = "herringbone.backends.ssh.waiter"


def wait_in_line(plan: JobPlan, code: PackedCode, arrival: float, home: Home, *, stop: Callable[[str], None]) -> None:
    """Start the waiter of a job whose row this process has claimed; `stop` stops a job that is the waiter's already."""
    name, is_handed_over, index = plan.job_name, False, JobIndex(home.index)
    config = {
        "job": name,
        "plan": plan_to_send(plan),
        "code": str(code.path),
        "digest": code.digest,
        "mark": new_mark(),
        "arrival": arrival,
        "deadline": deadline_of(plan, arrival),
    }
    JobEvents(home.job(name).job_events).state(PENDING)
    try:
        with blocked(CONTROLLER_SIGNALS):
            with handed_to(_WAITER, name, config, home, {**os.environ, **search_path()}) as waiter:
                index.update(name, client=waiter, secondary_status=PENDING)
            is_handed_over = True
    except BaseException:
        if is_handed_over:
            # Ctrl-C that arrived while signals were blocked. The job is the waiter's, which ends it.
            stop(name)
        else:
            # The waiter is dead. The claim of the name undoes the row of this process alone.
            index.update(name, client=identity(os.getpid()))
        raise
