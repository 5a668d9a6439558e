"""Starts the one host that this machine plays, under a keeper of its own, and knows it from then on.

The same verbs as for a job of this machine alone (`KeptBackend`): the index, the folder and the log lie here, in the
work folder. Only the meeting with the other hosts is another.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.backends.kept import KEEPER, KeptBackend
from herringbone.backends.process.tree import fill_host, host_environment, job_environment
from herringbone.home import Home
from herringbone.remote.start_order import StartOrder, localised
from herringbone_spec.contract import HostVariable, Key
from herringbone_spec.paths import Paths

if TYPE_CHECKING:
    from herringbone.keeper.order import Order
    from herringbone.plan import JobPlan

_SUPERVISOR = (sys.executable, "-m", "herringbone_entry")
MACHINES = "machines.json"


class Hosting(KeptBackend):
    """Keeps jobs below `home`, the work folder; `start` is needed for `submit` alone."""

    name = "host"

    def __init__(
        self,
        home: Home,
        start: StartOrder | None = None,
        *,
        supervisor: tuple[str, ...] = _SUPERVISOR,
        keeper: tuple[str, ...] = KEEPER,
    ) -> None:
        super().__init__(home, keeper=keeper)
        self._order_given = start
        self._supervisor = supervisor

    def review(self, plan: JobPlan) -> tuple[str, ...]:  # noqa: ARG002 - it was reviewed where it was submitted
        return ()

    @property
    def code_folder(self) -> Path:
        """Packed code, by digest."""
        return self._home.path / "code"

    @property
    def data_folder(self) -> Path:
        """Channels, by digest."""
        return self._home.path / "data"

    def _order(self, plan: JobPlan, run_folder: str) -> Order:
        start = self._start_order
        given = msgspec.structs.replace(plan.options, output_path=None)
        order = super()._order(msgspec.structs.replace(plan, options=given), run_folder)
        order["hosts"] = [host for host in order["hosts"] if host["name"] == start.host]
        order["output"] = None
        return order

    def _start(self, plan: JobPlan, order: Order, lent: Sequence[int], keeper: str) -> None:  # noqa: ARG002
        start = self._start_order
        folder = self._home.job(plan.job_name)
        code = self.code_folder / f"{start.code}.tar.gz"
        here = localised(start, code=str(code), data_folder=str(self.data_folder))
        steering = {**here.hyperparameters, Key.SUBMIT_DIRECTORY: json.dumps(str(code))}
        here = msgspec.structs.replace(here, hyperparameters=steering)
        host = next(host for host in here.hosts if host.name == start.host)
        fill_host(here, host, folder, but_not=self._home.path, interface=start.interface)
        (folder.path / MACHINES).write_text(json.dumps(start.machines))
        environment = job_environment(
            here, run_folder=order["run_folder"], cache=self._home.cache, grace=order["stop_grace"]
        )
        if start.control is not None:
            environment[HostVariable.CONTROL] = start.control
        order["processes"] = {
            "argv": list(self._supervisor),
            "environment": {**os.environ, **start.settings, **plan.environment, **environment},
            "host_environments": {host.name: host_environment(host, folder)},
            "key": start.key,
        }

    @property
    def _start_order(self) -> StartOrder:
        assert self._order_given is not None
        return self._order_given

    def left_behind(self, name: str, host: str) -> list[str]:
        """Return which folders of a host's tree have something to fetch, as paths below the work folder."""
        paths = Paths(self._home.job(name).host(host))
        found = [Path(folder) for folder in (paths.model, paths.output) if any(Path(folder).rglob("*"))]
        return [folder.relative_to(self._home.path).as_posix() for folder in found]
