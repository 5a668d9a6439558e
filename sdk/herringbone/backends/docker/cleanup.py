"""Removes what dead controllers left in the engine: containers and networks of this machine's jobs, found by label."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.request import ObjectLabel
from herringbone.controller.containers import remove_container, remove_network
from herringbone.engine.client import Engine
from herringbone.processes import is_alive

if TYPE_CHECKING:
    from herringbone.jobs.home import Home


def labels_of(job: str, home: Home, controller: str) -> dict[str, str]:
    """Return the labels of all that a job makes in the engine."""
    return {**_ours(home), ObjectLabel.JOB: job, ObjectLabel.CONTROLLER: controller}


def sweep(engine: Engine, home: Home, *, job: str | None = None) -> list[str]:
    """Remove what no living controller looks after, of one job or of all; return the names of what was removed.

    Only what was made from this machine and this home: who lives elsewhere cannot be seen from here.
    """
    wanted = dict(_ours(home))
    if job is not None:
        wanted[ObjectLabel.JOB] = job
    filters = {"label": [f"{name}={value}" for name, value in wanted.items()]}
    removed = []
    for container in _orphans(engine.get("/containers/json", all=True, filters=filters)):
        remove_container(engine, container["Id"])
        removed.append(container["Names"][0].lstrip("/") if container["Names"] else container["Id"])
    for network in _orphans(engine.get("/networks", filters=filters)):
        remove_network(engine, network["Id"])
        removed.append(network["Name"])
    return removed


def _ours(home: Home) -> dict[str, str]:
    return {ObjectLabel.HOME: str(home.path), ObjectLabel.MACHINE: platform.node()}


def _orphans(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if not is_alive(each["Labels"].get(ObjectLabel.CONTROLLER, "0@"))]
