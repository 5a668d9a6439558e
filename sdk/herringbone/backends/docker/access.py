"""The way into a host that is a container: a program that the engine starts there."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.request import ObjectLabel
from herringbone.engine.client import Engine, EngineRefusal
from herringbone.engine.execution import Execution
from herringbone.images.labels import CONTRACT, Label
from herringbone.protocols.host_access import enter_words, fault_words, relay_words
from herringbone.system.attached import joined
from herringbone_contract.errors import RequestError

if TYPE_CHECKING:
    from herringbone.records.home import Home

_NOT_FOUND = 404
# Images of ours have Herringbone in the Python of this name.
_PYTHON = "python3"


class ContainerAccess:
    """The way into one container; `is_ours` means that its image has Herringbone, which sets up a rank's surroundings.

    A foreign image gets the command, or `sh`, as it is.
    """

    is_here = False

    def __init__(self, engine: Engine, container: str, *, is_ours: bool) -> None:
        self._engine, self._container, self._is_ours = engine, container, is_ours

    def run(self, command: Sequence[str]) -> int:
        words = self.words(command)
        return Execution(self._engine, self._container, words, terminal=os.isatty(0) and os.isatty(1)).run()

    def connect(self, port: int) -> socket.socket:
        return joined(Execution(self._engine, self._container, relay_words(_PYTHON, port), terminal=False))

    def strike(self, kind: str, seconds: float = 0.0) -> int:
        place = f"/containers/{self._container}"
        # From inside, nobody can kill or stop the first process of a container, or take its network away.
        if kind == "frozen":
            self._engine.post(f"{place}/pause")
            time.sleep(seconds)
            # The job may have given the container up, and removed it.
            with contextlib.suppress(EngineRefusal):
                self._engine.post(f"{place}/unpause")
        elif kind == "links":
            for network in self._engine.get(f"{place}/json")["NetworkSettings"]["Networks"]:
                self._engine.post(f"/networks/{network}/disconnect", {"Container": self._container, "Force": True})
        elif kind in ("lost", "notice"):
            self._engine.post(f"{place}/kill", signal="SIGKILL" if kind == "lost" else "SIGTERM")
        else:
            # Not `run`: a rehearsal calls this in a thread, which has no terminal.
            return Execution(
                self._engine, self._container, self.words(fault_words(kind, seconds)), terminal=False
            ).run()
        return 0

    def words(self, command: Sequence[str]) -> list[str]:
        """Return the words of the program in the container."""
        return enter_words(_PYTHON, None, "", command) if self._is_ours else list(command) or ["/bin/sh"]


def container_access(engine: Engine, home: Home, job: str, host: str) -> ContainerAccess:
    """Return the way into the container of a host. Raises `RequestError` when it does not run."""
    labels = [f"{ObjectLabel.JOB}={job}", f"{ObjectLabel.HOME}={home.path}"]
    name = f"{job}-{host}"
    # By labels: a job of another home may have the same name, and its containers too.
    found: list[dict[str, Any]] = engine.get("/containers/json", filters={"label": labels})
    container = next((item for item in found if f"/{name}" in item["Names"]), None)
    if container is None:
        raise RequestError(f"job {job}: the container of {host} does not run at {engine.address}; look at its log")
    try:
        details = engine.get(f"/containers/{container['Id']}/json")
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
        raise RequestError(f"job {job}: the container of {host} has just ended") from None
    own = (details["Config"].get("Labels") or {}).get(Label.CONTRACT) == CONTRACT
    return ContainerAccess(engine, container["Id"], is_ours=own)
