"""Starts the one host that this machine plays, under a controller of its own, and knows it from then on.

The same verbs as for a job of this machine alone (`DetachedBackend`): the index, the folder and the log lie here, in
the work folder. Only the meeting with the other hosts is another.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.detached import CONTROLLER, DetachedBackend
from herringbone.backends.process.tree import fill_host, host_environment, job_environment
from herringbone.backends.ssh.agent.cleanup import Uses, note_uses
from herringbone.backends.ssh.agent.host_config import StartOrder, localised
from herringbone.jobs.home import Home, JobFolder
from herringbone_contract.constants import HostVariable, Key
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.controller.config import ControllerConfig
    from herringbone.planning.plan import JobPlan

_SUPERVISOR = (sys.executable, "-m", "herringbone_entry")
MACHINES = "machines.json"


def code_folder(home: Home) -> Path:
    """Packed code, by digest."""
    return home.path / "code"


def data_folder(home: Home) -> Path:
    """Channels, by digest."""
    return home.path / "data"


def plan_here(start: StartOrder, home: Home) -> JobPlan:
    """Return the plan with the places of what was sent."""
    code = code_folder(home) / f"{start.code}.tar.gz"
    here = localised(start, code=str(code), data_folder=str(data_folder(home)))
    steering = {**here.hyperparameters, Key.SUBMIT_DIRECTORY: json.dumps(str(code))}
    return msgspec.structs.replace(here, hyperparameters=steering)


def unplaced(plan: JobPlan) -> JobPlan:
    """Return the plan without the place of its output, which is on the machine that submitted it."""
    return msgspec.structs.replace(plan, options=msgspec.structs.replace(plan.options, output_path=None))


def of_one_host(config: ControllerConfig, start: StartOrder) -> ControllerConfig:
    """Reduce a job's config to one host: no packing, no retries; timeouts come from the submitter."""
    config["hosts"] = [each for each in config["hosts"] if each["name"] == start.host]
    config["output"] = None
    # Where its host goes next, one machine cannot know.
    config["retries"] = 0
    config["stop_grace"] = float(start.settings.get(HostVariable.STOP_GRACE, config["stop_grace"]))
    return config


def note(start: StartOrder, folder: Path) -> None:
    """Write down in the job's folder which machines play its hosts, and what it takes from the work folder."""
    (folder / MACHINES).write_text(json.dumps(start.machines))
    data = tuple(each.digest for each in start.data.values() if each.digest is not None)
    note_uses(folder, Uses(code=start.code, data=data, environment=Path(sys.prefix).name))


def take_checkpoints(start: StartOrder, home: Home, folder: JobFolder) -> None:
    """Put what an earlier attempt left into a host's tree: it is this attempt's alone from now on."""
    if start.checkpoints is not None:
        place = Path(Paths(folder.host(start.host)).checkpoints)
        place.rmdir()
        shutil.move(data_folder(home) / start.checkpoints, place)


class Hosting(DetachedBackend):
    """Keeps jobs below `home`, the work folder; `start` is needed for `submit` alone."""

    name = "host"

    def __init__(
        self,
        home: Home,
        start: StartOrder | None = None,
        *,
        supervisor: tuple[str, ...] = _SUPERVISOR,
        controller: tuple[str, ...] = CONTROLLER,
    ) -> None:
        super().__init__(home, controller=controller)
        self._order_given = start
        self._supervisor = supervisor

    def review(self, plan: JobPlan) -> tuple[str, ...]:  # noqa: ARG002 - it was reviewed where it was submitted
        return ()

    def _config(self, plan: JobPlan, run_folder: str) -> ControllerConfig:
        return of_one_host(super()._config(unplaced(plan), run_folder), self._start_order)

    def _start(
        self,
        plan: JobPlan,
        config: ControllerConfig,
        inherited: Sequence[int],  # noqa: ARG002
        controller: str,  # noqa: ARG002
    ) -> None:
        start = self._start_order
        folder = self._home.job(plan.job_name)
        here = plan_here(start, self._home)
        (host,) = (host for host in here.hosts if host.name == start.host)
        fill_host(here, host, folder, but_not=self._home.path, interface=start.interface)
        note(start, folder.path)
        environment = job_environment(
            here, run_folder=config["run_folder"], cache=self._home.cache, grace=config["stop_grace"]
        )
        take_checkpoints(start, self._home, folder)
        if start.control is not None:
            environment[HostVariable.CONTROL] = start.control
        config["processes"] = {
            "argv": list(self._supervisor),
            "environment": {**os.environ, **start.settings, **plan.environment, **environment},
            "host_environments": {host.name: host_environment(host, folder)},
            "key": start.key,
        }

    @property
    def _start_order(self) -> StartOrder:
        assert self._order_given is not None
        return self._order_given


def left_behind(home: Home, name: str, host: str) -> list[str]:
    """Return which folders of a host's tree have something to fetch, as paths below the work folder."""
    paths = Paths(home.job(name).host(host))
    found = [Path(folder) for folder in (paths.model, paths.output) if any(Path(folder).rglob("*"))]
    return [folder.relative_to(home.path).as_posix() for folder in found]
