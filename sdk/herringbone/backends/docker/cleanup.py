"""Garbage collection in the engine: containers and networks whose controller died, found by their labels."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.request import ObjectLabel
from herringbone.controller.containers.calls import remove_container, remove_network
from herringbone.engine.client import Engine
from herringbone.system.processes import may_live, place

if TYPE_CHECKING:
    from herringbone.records.home import Home


def labels_of(job: str, home: Home, controller: str) -> dict[str, str]:
    """Return the labels of everything that a job creates in the engine."""
    return {**_owner_labels(home), ObjectLabel.JOB: job, ObjectLabel.CONTROLLER: controller, ObjectLabel.PLACE: place()}


def collect_garbage(engine: Engine, home: Home, *, job: str | None = None) -> list[str]:
    """Remove what has no living controller, of one job or of all; return the names of the removed objects.

    Only objects of this machine and this home are removed: processes of other machines cannot be seen from here.
    """
    labels = dict(_owner_labels(home))
    if job is not None:
        labels[ObjectLabel.JOB] = job
    filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
    removed = []
    for container in _orphans(engine.get("/containers/json", all=True, filters=filters)):
        remove_container(engine, container["Id"])
        removed.append(container["Names"][0].lstrip("/") if container["Names"] else container["Id"])
    # Networks come second: the engine refuses to remove one that has containers.
    for network in _orphans(engine.get("/networks", filters=filters)):
        remove_network(engine, network["Id"])
        removed.append(network["Name"])
    return removed


def _owner_labels(home: Home) -> dict[str, str]:
    return {ObjectLabel.HOME: str(home.path), ObjectLabel.MACHINE: platform.node()}


def _orphans(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    labels = [(item, item["Labels"]) for item in objects]
    return [
        item for item, its in labels if not may_live(its.get(ObjectLabel.CONTROLLER, "0@"), its.get(ObjectLabel.PLACE))
    ]
