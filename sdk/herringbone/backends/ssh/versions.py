"""Whether machines fit the inventory and each other: GPUs that are missing, drivers and libraries that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herringbone.backends.ssh.inventory import Machine, Runtime
from herringbone.planning.plan import HostPlan


def disagreements(
    hosts: Sequence[HostPlan], machines: Mapping[str, Machine], hellos: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what would go wrong later, a line each; hosts of one group are to be of one kind.

    >>> host = HostPlan(name="algo-1", instance_type="ssh:h.yaml", group="g", ranks=1)
    >>> disagreements([host], {"algo-1": Machine(name="a", gpus=2)}, {"algo-1": {"gpus": 1}})
    ['a: the inventory says 2 GPUs, the machine has 1']
    """
    found = []
    for host in hosts:
        machine, has = machines[host.name], hellos[host.name].get("gpus", 0)
        if machine.gpus is not None and has < machine.gpus:
            found.append(f"{machine.name}: the inventory says {machine.gpus} GPUs, the machine has {has}")
    groups: dict[str, list[HostPlan]] = {}
    for host in hosts:
        if not host.helper:
            groups.setdefault(host.group, []).append(host)
    for group in groups.values():
        versions = {
            machines[host.name].name: versions_of(hellos[host.name], runtime=machines[host.name].runtime)
            for host in group
        }
        found += differences(versions)
    return found


def versions_of(hello: Mapping[str, Any], *, runtime: Runtime) -> dict[str, str]:
    """Return what must not differ between machines of one kind; containers bring their libraries along."""
    driver = {"NVIDIA driver": hello.get("driver") or "none"}
    return driver if runtime == "docker" else {**driver, **hello.get("libraries", {})}


def differences(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each thing of which machines have different versions.

    >>> differences({"a": {"torch": "2.2"}, "b": {"torch": "2.3"}, "c": {}})
    ['torch differs: 2.2 on a; 2.3 on b; none on c']
    """
    found = []
    for thing in sorted({name for own in versions.values() for name in own}):
        having: dict[str, list[str]] = {}
        for machine, own in versions.items():
            having.setdefault(own.get(thing, "none"), []).append(machine)
        if len(having) > 1:
            found.append(f"{thing} differs: " + "; ".join(f"{what} on {', '.join(on)}" for what, on in having.items()))
    return found
