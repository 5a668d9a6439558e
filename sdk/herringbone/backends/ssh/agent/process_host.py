"""Run the one host of a job that this machine plays as a process tree, under a controller of its own.

The verbs are those of a job of one machine (`DetachedBackend`): index, job folder and log are in the work folder. Only
the rendezvous with the other hosts differs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.detached import CONTROLLER, DetachedBackend
from herringbone.backends.on_s3 import pipes_config
from herringbone.backends.process.tree import fill_host, host_environment, job_environment
from herringbone.backends.ssh.agent.cleanup import Uses, note_uses
from herringbone.backends.ssh.agent.host_config import HostConfig, localize
from herringbone.backends.ssh.agent.store import code_folder, data_folder
from herringbone.plan.host_tree import write_json
from herringbone.protocols.host_access import LocalAccess
from herringbone.records.home import Home, JobFolder
from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus, is_share
from herringbone_contract.constants import DEFAULT_BASE, HostVariable, Key
from herringbone_contract.files import write_whole
from herringbone_contract.paths import INSIDE, Paths
from herringbone_contract.safe_tree import is_empty
from herringbone_contract.variables import of_the_shell

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.controller_config import ClaimConfig, ControllerConfig, PipesConfig
    from herringbone.protocols.host_access import HostAccess
    from herringbone.slots.claim import Claim
    from herringbone.slots.probe import Probe

_SUPERVISOR = (sys.executable, "-m", "herringbone_entry")
MACHINES = "machines.json"


def plan_for_machine(config: HostConfig, home: Home) -> JobPlan:
    """Return the plan with the paths of the uploads on this machine."""
    code = code_folder(home) / f"{config.code}.tar.gz"
    plan = localize(config, code=str(code), data_folder=str(data_folder(home)))
    hyperparameters = {**plan.hyperparameters, Key.SUBMIT_DIRECTORY: json.dumps(str(code))}
    return msgspec.structs.replace(plan, hyperparameters=hyperparameters)


def without_output_path(plan: JobPlan) -> JobPlan:
    """Return the plan without the folder of its output, which is on the machine of the client."""
    return msgspec.structs.replace(plan, options=msgspec.structs.replace(plan.options, output_path=None))


def reduce_to_host(controller_config: ControllerConfig, config: HostConfig) -> ControllerConfig:
    """Reduce a job's controller config to one host: no packing, no retries; timeouts come from the submitter."""
    hosts = controller_config["hosts"]
    controller_config["hosts"] = [host for host in hosts if host["name"] == config.host]
    # The client packs the models of all hosts.
    controller_config["output"] = None
    # The client decides on retries: one machine does not know which others are free.
    controller_config["retries"] = 0
    if config.s3 is not None:
        (host,) = controller_config["hosts"]
        controller_config["s3"] = {
            "job": controller_config["job"],
            "checkpoints": (str(Paths(Path(host["base"])).checkpoints), config.s3["uri"]),
            "output": None,
            "access": config.s3["access"],
            "several": config.s3["several"],
        }
    stop_grace = config.settings.get(HostVariable.STOP_GRACE, controller_config["stop_grace"])
    controller_config["stop_grace"] = float(stop_grace)
    return controller_config


def write_notes(config: HostConfig, folder: Path) -> None:
    """Record, in the job's folder, the machines of the job's hosts and the uploads that the job uses."""
    # A client elsewhere reads the machines (`herringbone hosts jobs`), a clean-up reads the uploads.
    write_whole(folder / MACHINES, json.dumps(config.machines).encode())
    data = tuple(location.digest for location in config.data.values() if location.digest is not None)
    note_uses(folder, Uses(code=config.code, data=data, environment=Path(sys.prefix).name))


def move_checkpoints(config: HostConfig, home: Home, folder: JobFolder) -> None:
    """Move the checkpoints of earlier attempts into the host's tree, and note where a bucket has them."""
    if config.s3 is not None:
        paths = Paths(folder.host(config.host))
        # In a container, too, this is the folder that the host's tree has there.
        inside = Paths(PurePosixPath(DEFAULT_BASE)).checkpoints if config.image is not None else paths.checkpoints
        write_json(paths.checkpoint_config, {"S3Uri": config.s3["uri"], "LocalPath": str(inside)})
    if config.checkpoints is not None:
        target = Path(Paths(folder.host(config.host)).checkpoints)
        # `shutil.move` would move into an existing folder; this one is empty.
        target.rmdir()
        # Moved, not linked: the attempt changes them, so no other attempt may use this copy.
        shutil.move(data_folder(home) / config.checkpoints, target)


def gpus_of_host(config: HostConfig, plan: JobPlan, claim: ClaimConfig | None, probe: Probe) -> tuple[str, ...] | None:
    """Return the GPUs that the host may see; None for all of the machine's, which a job has alone."""
    count = plan.options.gpus
    if count is None and not config.machines[config.host].get("cpu_shares"):
        return None
    if claim is not None:
        return tuple(device for device in claim["devices"] if not is_share(device))
    # No line there: the job has the machine alone, by the lock.
    return find_gpus(probe.listing(), os.environ)[: count or 0]


class MachineHost(DetachedBackend):
    """The host that a machine plays: the client has reviewed its plan, and the agent has entered the line for it.

    Only `submit` needs `_given_config` and `_slot`, the granted claim.
    """

    _given_config: HostConfig | None
    _slot: Claim | None

    def review(self, plan: JobPlan) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def _enter(self, plan: JobPlan) -> Claim | None:  # noqa: ARG002
        return self._slot

    def _config(self, plan: JobPlan, run_folder: str) -> ControllerConfig:
        return reduce_to_host(super()._config(without_output_path(plan), run_folder), self._host_config)

    def _pipes(self, plan: JobPlan) -> PipesConfig | None:
        """Return the FIFOs of this machine's host; their data is here, because the client has sent it."""
        config = self._host_config
        local = msgspec.structs.replace(plan_for_machine(config, self._home), job_name=plan.job_name)
        return pipes_config(local, self._home, [host for host in local.hosts if host.name == config.host])

    @property
    def _host_config(self) -> HostConfig:
        assert self._given_config is not None
        return self._given_config


class ProcessHost(MachineHost):
    """Runs hosts below `home`, the work folder; only `submit` needs `config` and `slot`, the granted claim."""

    # Stored in the index of every machine: jobs of an older Herringbone have this name, too.
    name = "host"

    def __init__(
        self,
        home: Home,
        config: HostConfig | None = None,
        *,
        slot: Claim | None = None,
        supervisor: tuple[str, ...] = _SUPERVISOR,
        controller: tuple[str, ...] = CONTROLLER,
    ) -> None:
        super().__init__(home, controller=controller)
        self._given_config, self._slot = config, slot
        self._supervisor = supervisor

    def access(self, name: str, host: str) -> HostAccess:
        self._check_here(self.describe(name))
        folder = self._home.job(name)
        return LocalAccess(self._supervisor[0], folder.host(host), name, folder.path)

    def _start(
        self,
        plan: JobPlan,
        config: ControllerConfig,
        inherited: Sequence[int],  # noqa: ARG002
        controller: str,  # noqa: ARG002
    ) -> None:
        host_config = self._host_config
        folder = self._home.job(plan.job_name)
        local_plan = plan_for_machine(host_config, self._home)
        (host,) = (host for host in local_plan.hosts if host.name == host_config.host)
        fill_host(local_plan, host, folder, exclude=self._home.path, interface=host_config.interface)
        write_notes(host_config, folder.path)
        gpus = gpus_of_host(host_config, plan, config["claim"], self._probe)
        # A script that has a part of the machine must not see the rest.
        visible = {} if gpus is None else {VISIBLE_VARIABLE: ",".join(gpus)}
        environment = job_environment(
            local_plan, run_folder=config["run_folder"], cache=self._home.cache, grace=config["stop_grace"]
        )
        # After `fill_host`, which makes the empty folder that the checkpoints replace.
        move_checkpoints(host_config, self._home, folder)
        if host_config.control is not None:
            environment[HostVariable.CONTROL] = host_config.control
        config["processes"] = {
            "argv": list(self._supervisor),
            # The user's variables come after the machine's, and the contract's come last.
            "environment": {**of_the_shell(os.environ), **host_config.settings, **plan.environment, **environment},
            "host_environments": {host.name: {**host_environment(host, folder), **visible}},
            "key": host_config.key,
        }


def result_folders(home: Home, job: str, host: str) -> list[str]:
    """Return the folders of a host's tree that have files to fetch, as paths below the work folder.

    Raises `OSError` when the script replaced one of them by a link: a copy would follow the link.
    """
    base = home.job(job).host(host)
    below = base.relative_to(home.path)
    folders = [inside for inside in (INSIDE.model, INSIDE.output) if not is_empty(base, str(inside))]
    return [(below / inside).as_posix() for inside in folders]
