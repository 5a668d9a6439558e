"""`local_process`: hosts are processes of this machine; the job's controller starts them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from herringbone.backends.process.gpus import wants_of
from herringbone.backends.process.review import review
from herringbone.backends.process.start import HostProcesses
from herringbone.records.home import find_home
from herringbone.slots.ticket import Wants
from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan


def make_backend() -> ProcessBackend:
    """Return the backend for this user's jobs."""
    if os.name != "posix":
        raise UnsupportedError(
            "instance_type 'local_process' needs a POSIX system (Linux, macOS); on Windows, run it inside WSL"
        )
    return ProcessBackend(find_home(), (sys.executable, "-m", "herringbone_entry"))


class ProcessBackend(HostProcesses):
    """Runs all hosts of a job; see `HostProcesses`."""

    name = "local_process"

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        return review(plan, probe=self._probe)

    def _wants(self, plan: JobPlan) -> Wants:
        return wants_of(plan, self._probe)
