"""Hosts that are processes of this machine: their files, and what the job's controller starts.

`local_process` runs all hosts of a job so, a machine of `ssh:` the one that it plays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.backends.detached import CONTROLLER, PATIENCE_SECONDS, DetachedBackend
from herringbone.backends.process.gpus import gpus_of_hosts
from herringbone.backends.process.tree import (
    LOOPBACK,
    fill_host,
    host_environment,
    job_environment,
    keeps_in_memory,
    memory_environment,
)
from herringbone.records.home import Home
from herringbone.system.detached_process import search_path
from herringbone_contract.variables import of_the_shell

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.controller_config import ClaimConfig, ControllerConfig
    from herringbone.protocols.host_access import HostAccess


class HostProcesses(DetachedBackend):
    """Runs jobs below `home`; `supervisor` is the command that starts one host's supervisor."""

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

    def access(self, name: str, host: str) -> HostAccess:
        # Imported here: only a shell and a debugger need it.
        from herringbone.protocols.host_access import LocalAccess

        self._check_here(self.describe(name))
        folder = self._home.job(name)
        return LocalAccess(self._supervisor[0], folder.host(host), name, folder.path)

    @property
    def _interface(self) -> str:
        """The network interface that leads to the other hosts."""
        return LOOPBACK

    def _visible(self, plan: JobPlan, claim: ClaimConfig | None) -> dict[str, dict[str, str]]:
        """Return the variable of the GPUs that each host sees; empty where all see what this machine shows."""
        return gpus_of_hosts(plan, None if claim is None else claim["devices"], self._probe)

    def _fill(self, plan: JobPlan) -> None:
        folder = self._home.job(plan.job_name)
        for host in self._hosts(plan):
            fill_host(plan, host, folder, exclude=self._home.path, interface=self._interface)

    def _start(
        self,
        plan: JobPlan,
        config: ControllerConfig,
        inherited: Sequence[int],  # noqa: ARG002 - only containers have connections to inherit
        controller: str,  # noqa: ARG002
    ) -> None:
        folder = self._home.job(plan.job_name)
        gpus = self._visible(plan, config["claim"])
        config["processes"] = {
            "argv": list(self._supervisor),
            "environment": {
                **of_the_shell(os.environ),
                # Later entries win: the user's over the client's, and the job's own over both.
                **search_path(),
                **plan.environment,
                **memory_environment(plan),
                **job_environment(
                    plan, run_folder=config["run_folder"], cache=self._home.cache, grace=config["stop_grace"]
                ),
            },
            "host_environments": {
                host.name: {**host_environment(host, folder), **gpus.get(host.name, {})} for host in self._hosts(plan)
            },
            # All supervisors are children of the controller, which makes a key when there are several.
            "key": None,
            "holders": keeps_in_memory(plan, config["retries"]),
        }
