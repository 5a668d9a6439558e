"""Starts the one host that this machine plays as a container of its engine; see `hosting` for what is the same.

The container shares the machine's network: hosts meet at the machines' own addresses, and NCCL and MPI find the
interfaces that are there. It sees all GPUs of the machine, and of its files the host's tree and the channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.docker.backend import DockerBackend
from herringbone.backends.docker.gpus import find_gpus
from herringbone.backends.docker.image import Image, find_image
from herringbone.backends.docker.request import HostNetwork
from herringbone.backends.ssh.agent.host_config import StartOrder
from herringbone.backends.ssh.agent.process_host import note, of_one_host, plan_here, take_checkpoints, unplaced
from herringbone.engine.client import Engine, Upload
from herringbone.engine.locate import find_engine
from herringbone.jobs.home import Home, JobFolder
from herringbone_contract.errors import EngineError, ImageError

if TYPE_CHECKING:
    from herringbone.controller.config import ControllerConfig
    from herringbone.planning.plan import HostPlan, JobPlan

_HOST_NETWORK = "host"


def engine_here() -> Engine:
    """Return this machine's engine. Raises `EngineError` where none answers, or it is another machine's."""
    engine = find_engine(os.environ, Path.home())
    if not engine.is_local:
        raise EngineError(f"its container engine is elsewhere, at {engine.address}; a machine needs one of its own")
    return engine


class ContainerHosting(DockerBackend):
    """Keeps jobs below `home`, the work folder; `start` is needed for `submit` alone."""

    name = "container"

    def __init__(
        self, home: Home, start: StartOrder | None = None, *, find: Callable[[], Engine] = engine_here
    ) -> None:
        super().__init__(home, find, environ=os.environ if start is None else {**os.environ, **start.settings})
        self._order_given = start

    def review(self, plan: JobPlan) -> tuple[str, ...]:  # noqa: ARG002 - it was reviewed where it was submitted
        return ()

    def _config(self, plan: JobPlan, run_folder: str) -> ControllerConfig:
        return of_one_host(super()._config(unplaced(plan), run_folder), self._start_order)

    def _start(self, plan: JobPlan, config: ControllerConfig, inherited: Sequence[int], controller: str) -> None:
        start = self._start_order
        super()._start(plan_here(start, self._home), config, inherited, controller)
        note(start, self._home.job(plan.job_name).path)

    def _add_files(self, folder: JobFolder) -> None:
        take_checkpoints(self._start_order, self._home, folder)

    def _hosts(self, plan: JobPlan) -> Sequence[HostPlan]:
        return [host for host in plan.hosts if host.name == self._start_order.host]

    def _network(self, plan: JobPlan) -> HostNetwork:  # noqa: ARG002 - whoever submitted it chose the place
        start = self._start_order
        return HostNetwork(mode=_HOST_NETWORK, control=start.control, interface=start.interface)

    def _image(self, plan: JobPlan) -> Image:  # noqa: ARG002 - it was chosen where the job was submitted
        wanted = self._start_order.image
        assert wanted is not None
        found = find_image(self._engine, wanted)
        if found is None:
            raise ImageError(f"the image {wanted} is gone from the machine's engine; run the job again")
        return found

    def _secrets(self, plan: JobPlan) -> dict[str, object]:
        return {"environment": plan.environment, "key": self._start_order.key}

    def _split_gpus(self, plan: JobPlan) -> dict[str, tuple[str, ...]]:
        (host,) = self._hosts(plan)
        return {} if host.helper else {host.name: find_gpus(self._gpus(), os.environ)}

    @property
    def _start_order(self) -> StartOrder:
        assert self._order_given is not None
        return self._order_given


class ImageIntake:
    """Takes an image that a visitor sends, a piece at a time, into the machine's engine."""

    def __init__(self, find: Callable[[], Engine] = engine_here) -> None:
        self._find = find
        self._upload: Upload | None = None

    def find(self, name: str) -> Image | None:
        """Return the image that is here under a name or an id."""
        return find_image(self._find(), name)

    def feed(self, piece: bytes) -> None:
        if self._upload is None:
            self._upload = Upload(self._find(), "POST", "/images/load", {"quiet": True})
        self._upload.feed(piece)

    def finish(self, wanted: str) -> None:
        """All has come. Raises `EngineError` where the engine did not take the image with the id `wanted` out of it."""
        assert self._upload is not None
        upload, self._upload = self._upload, None
        said = upload.finish()
        if self.find(wanted) is None:
            raise EngineError(f"the container engine did not take the image that was sent: {said.strip()[-500:]}")
