"""`local_process`: hosts are processes of this machine; the job's controller starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.backends.detached import CONTROLLER, PATIENCE_SECONDS, DetachedBackend
from herringbone.backends.process.gpus import gpus_of_hosts, wants_of
from herringbone.backends.process.review import review
from herringbone.backends.process.tree import fill_host, host_environment, job_environment
from herringbone.records.home import Home, find_home
from herringbone.slots.ticket import Wants
from herringbone.system.detached_process import search_path
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.variables import of_the_shell

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.controller_config import ControllerConfig
    from herringbone.protocols.host_access import HostAccess


def make_backend() -> ProcessBackend:
    """Return the backend for this user's jobs."""
    if os.name != "posix":
        raise UnsupportedError(
            "instance_type 'local_process' needs a POSIX system (Linux, macOS); on Windows, run it inside WSL"
        )
    return ProcessBackend(find_home(), (sys.executable, "-m", "herringbone_entry"))


class ProcessBackend(DetachedBackend):
    """Runs jobs below `home`; `supervisor` is the command that starts one host's supervisor."""

    name = "local_process"

    def __init__(
        self,
        home: Home,
        supervisor: tuple[str, ...],
        *,
        controller: tuple[str, ...] = CONTROLLER,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(home, controller=controller, patience=patience)
        self._supervisor = supervisor

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        return review(plan, probe=self._probe)

    def access(self, name: str, host: str) -> HostAccess:
        # Imported here: only a shell and a debugger need it.
        from herringbone.protocols.host_access import LocalAccess

        self._check_here(self.describe(name))
        folder = self._home.job(name)
        return LocalAccess(self._supervisor[0], folder.host(host), name, folder.path)

    def _wants(self, plan: JobPlan) -> Wants:
        return wants_of(plan, self._probe)

    def _fill(self, plan: JobPlan) -> None:
        for host in plan.hosts:
            fill_host(plan, host, self._home.job(plan.job_name), exclude=self._home.path)

    def _start(
        self,
        plan: JobPlan,
        config: ControllerConfig,
        inherited: Sequence[int],  # noqa: ARG002 - only containers have connections to inherit
        controller: str,  # noqa: ARG002
    ) -> None:
        folder = self._home.job(plan.job_name)
        granted = None if config["claim"] is None else config["claim"]["devices"]
        gpus = gpus_of_hosts(plan, granted, self._probe)
        config["processes"] = {
            "argv": list(self._supervisor),
            "environment": {
                **of_the_shell(os.environ),
                # Later entries win: the user's over the client's, and the job's own over both.
                **search_path(),
                **plan.environment,
                **job_environment(
                    plan, run_folder=config["run_folder"], cache=self._home.cache, grace=config["stop_grace"]
                ),
            },
            "host_environments": {
                host.name: {**host_environment(host, folder), **gpus.get(host.name, {})} for host in plan.hosts
            },
            # All supervisors are children of the controller, which makes a key when there are several.
            "key": None,
        }
