"""Run the one host of a job that this machine plays as a container; `process_host` has the parts that are the same.

The container shares the machine's network, so hosts reach each other at the machines' addresses, and NCCL and MPI see
the machine's interfaces. The container sees the GPUs that the job has of the machine, and of its files the host's tree
and the channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.backend import DockerBackend
from herringbone.backends.docker.image import Image, find_image
from herringbone.backends.docker.request import HostNetwork
from herringbone.backends.ssh.agent.host_config import HostConfig
from herringbone.backends.ssh.agent.process_host import (
    MachineHost,
    gpus_of_host,
)
from herringbone.backends.ssh.agent.store import machine_engine
from herringbone.engine.client import Engine
from herringbone.records.home import Home
from herringbone.slots.devices import find_gpus
from herringbone_contract.errors import ImageError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.slots.claim import Claim

_HOST_NETWORK = "host"


class ContainerHost(MachineHost, DockerBackend):
    """Runs hosts below `home`, the work folder; only `submit` needs `config` and `slot`, the granted claim."""

    # Stored in the index of every machine: jobs of an older Herringbone have this name, too.
    name = "container"

    def __init__(
        self,
        home: Home,
        config: HostConfig | None = None,
        *,
        slot: Claim | None = None,
        find: Callable[[], Engine] = machine_engine,
    ) -> None:
        super().__init__(home, find, environ=os.environ if config is None else {**os.environ, **config.settings})
        self._given_config, self._slot = config, slot

    def _network(self, plan: JobPlan) -> HostNetwork:  # noqa: ARG002 - the client has chosen the address
        config = self._host_config
        return HostNetwork(mode=_HOST_NETWORK, control=config.control, interface=config.interface)

    def _image(self, plan: JobPlan) -> Image:  # noqa: ARG002 - the client has chosen the image
        image_id = self._host_config.image
        assert image_id is not None
        image = find_image(self._engine, image_id)
        # The client has just sent it, but another program may remove images at any time.
        if image is None:
            raise ImageError(f"the image {image_id} is gone from the machine's engine; run the job again")
        return image

    def _secrets(self, plan: JobPlan) -> dict[str, Any]:
        return {"environment": plan.environment, "key": self._host_config.key}

    def _split_gpus(self, plan: JobPlan, granted: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:  # noqa: ARG002
        # A helper has no ranks and gets no GPUs.
        (host,) = self._hosts(plan)
        claim = None if self._slot is None else self._slot.config
        gpus = gpus_of_host(self._host_config, plan, claim, self._probe)
        if host.helper or gpus == ():
            return {}
        return {host.name: find_gpus(self._probe.listing(), os.environ) if gpus is None else gpus}
