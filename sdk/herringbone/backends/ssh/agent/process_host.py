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

from herringbone.backends.detached import DetachedBackend
from herringbone.backends.on_s3 import pipes_config
from herringbone.backends.process.start import HostProcesses
from herringbone.backends.ssh.agent.cleanup import Uses, note_uses
from herringbone.backends.ssh.agent.host_config import HostConfig, localize
from herringbone.backends.ssh.agent.store import code_folder, data_folder
from herringbone.backends.ssh.attempts.current import split_attempt
from herringbone.plan.host_tree import write_json
from herringbone.records.home import Home, JobFolder
from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus, is_share
from herringbone_contract.constants import DEFAULT_BASE, HostVariable
from herringbone_contract.files import write_whole
from herringbone_contract.hyperparameters import with_code_at
from herringbone_contract.paths import INSIDE, Paths
from herringbone_contract.safe_tree import is_empty

if TYPE_CHECKING:
    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.protocols.controller_config import ClaimConfig, ControllerConfig, PipesConfig
    from herringbone.slots.claim import Claim
    from herringbone.slots.probe import Probe

_SUPERVISOR = (sys.executable, "-m", "herringbone_entry")
MACHINES = "machines.json"


def plan_for_machine(config: HostConfig, home: Home) -> JobPlan:
    """Return the plan with the paths of the uploads on this machine."""
    code = code_folder(home) / f"{config.code}.tar.gz"
    plan = localize(config, code=str(code), data_folder=str(data_folder(home)))
    return msgspec.structs.replace(plan, hyperparameters=with_code_at(plan.hyperparameters, str(code)))


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
    controller_config["spent"] = config.spent
    if config.permit is not None:
        # Of all attempts here, which have folders of their own beside that of the first one.
        jobs = Path(controller_config["logs"]).parents[1]
        path = permit_file(jobs / split_attempt(controller_config["job"])[0])
        controller_config["permit"] = {"path": str(path), "seconds": config.permit}
    if config.s3 is not None:
        (host,) = controller_config["hosts"]
        controller_config["s3"] = {
            # The name that the script and its observer know, in every attempt.
            "job": split_attempt(controller_config["job"])[0],
            "checkpoints": (str(Paths(Path(host["base"])).checkpoints), config.s3["uri"]),
            "output": None,
            "access": config.s3["access"],
            "several": config.s3["several"],
        }
    stop_grace = config.settings.get(HostVariable.STOP_GRACE, controller_config["stop_grace"])
    controller_config["stop_grace"] = float(stop_grace)
    return controller_config


def permit_file(folder: Path) -> Path:
    """Return the file of a job's permit, in the folder of the job's first attempt."""
    return folder / "permit"


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
        local = msgspec.structs.replace(plan_for_machine(self._host_config, self._home), job_name=plan.job_name)
        return pipes_config(local, self._home, self._hosts(local))

    def _hosts(self, plan: JobPlan) -> Sequence[HostPlan]:
        return [host for host in plan.hosts if host.name == self._host_config.host]

    def _fill(self, plan: JobPlan) -> None:
        super()._fill(plan_for_machine(self._host_config, self._home))
        # Afterwards: they replace the empty folder of the host's tree.
        move_checkpoints(self._host_config, self._home, self._home.job(plan.job_name))

    def _start(self, plan: JobPlan, config: ControllerConfig, inherited: Sequence[int], controller: str) -> None:
        super()._start(plan_for_machine(self._host_config, self._home), config, inherited, controller)
        write_notes(self._host_config, self._home.job(plan.job_name).path)

    @property
    def _host_config(self) -> HostConfig:
        assert self._given_config is not None
        return self._given_config


class ProcessHost(MachineHost, HostProcesses):
    """Runs hosts below `home`, the work folder; only `submit` needs `config` and `slot`, the granted claim."""

    # Stored in the index of every machine: jobs of an older Herringbone have this name, too.
    name = "host"

    def __init__(self, home: Home, config: HostConfig | None = None, *, slot: Claim | None = None) -> None:
        super().__init__(home, _SUPERVISOR)
        self._given_config, self._slot = config, slot

    @property
    def _interface(self) -> str:
        return self._host_config.interface

    def _visible(self, plan: JobPlan, claim: ClaimConfig | None) -> dict[str, dict[str, str]]:
        # A script that has a part of the machine must not see the rest.
        gpus = gpus_of_host(self._host_config, plan, claim, self._probe)
        return {} if gpus is None else {self._host_config.host: {VISIBLE_VARIABLE: ",".join(gpus)}}

    def _start(self, plan: JobPlan, config: ControllerConfig, inherited: Sequence[int], controller: str) -> None:
        super()._start(plan, config, inherited, controller)
        host_config, processes = self._host_config, config["processes"]
        assert processes is not None
        # The user's variables come after the submitter's settings.
        processes["environment"] |= {
            name: value for name, value in host_config.settings.items() if name not in plan.environment
        }
        if host_config.control is not None:
            processes["environment"][HostVariable.CONTROL] = host_config.control
        processes["key"] = host_config.key


def result_folders(home: Home, job: str, host: str) -> list[str]:
    """Return the folders of a host's tree that have files to fetch, as paths below the work folder.

    Raises `OSError` when the script replaced one of them by a link: a copy would follow the link.
    """
    base = home.job(job).host(host)
    below = base.relative_to(home.path)
    folders = [inside for inside in (INSIDE.model, INSIDE.output) if not is_empty(base, str(inside))]
    return [(below / inside).as_posix() for inside in folders]
