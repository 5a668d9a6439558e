"""Compare what machines report about themselves: addresses, GPUs, versions of drivers and libraries. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herringbone.backends.ssh.machines.inventory import Machine, Runtime
from herringbone.plan.plan import HostPlan
from herringbone_contract.errors import HostError


@dataclass(frozen=True, slots=True)
class HostAddress:
    """A machine on the network of the other machines.

    `interface` is empty when it is not known, `port` is None when no port is free.
    """

    machine: str
    address: str
    interface: str
    port: int | None


def address_of(machine: Machine, facts: Mapping[str, Any]) -> HostAddress:
    """Return the address of a machine, from the inventory and the machine's own facts.

    >>> address_of(Machine(name="gpu-1"),
    ...            {"address": "10.0.0.1", "interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, "port": 7590})
    HostAddress(machine='gpu-1', address='10.0.0.1', interface='eth0', port=7590)

    The inventory decides; without an entry it is the address that the ssh connection used. Raises `HostError` for an
    interface that the machine does not have.
    """
    interfaces: dict[str, str] = facts["interfaces"]
    if machine.interface is not None and machine.interface not in interfaces:
        known = ", ".join(interfaces) or "none"
        raise HostError(f"{machine.name}: it has no interface {machine.interface!r} with an address; it has: {known}")
    address = machine.address or interfaces.get(machine.interface or "") or facts["address"] or machine.destination
    interface = next((name for name, its_address in interfaces.items() if its_address == address), "")
    return HostAddress(machine.name, address, machine.interface or interface, facts["port"])


def control_address(first: HostAddress) -> str:
    """Return the address where the supervisors of a job connect, in the form of `HostVariable.CONTROL`."""
    if first.port is None:
        raise HostError(f"{first.machine}: none of the ports 7590 to 7689 is free for connections of the other hosts")
    return f"tcp:{first.address}:{first.port}"


def disagreements(
    hosts: Sequence[HostPlan], machines: Mapping[str, Machine], facts: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return a line for each fact that would make the job fail later; machines of one group must be alike.

    >>> host = HostPlan(name="algo-1", instance_type="ssh:h.yaml", group="g", ranks=1)
    >>> disagreements([host], {"algo-1": Machine(name="a", gpus=2)}, {"algo-1": {"gpus": 1}})
    ['a: the inventory says 2 GPUs, the machine has 1']
    """
    problems = []
    for host in hosts:
        machine, gpus = machines[host.name], facts[host.name].get("gpus", 0)
        if machine.gpus is not None and gpus < machine.gpus:
            problems.append(f"{machine.name}: the inventory says {machine.gpus} GPUs, the machine has {gpus}")
    groups: dict[str, list[HostPlan]] = {}
    for host in hosts:
        # A helper only sums bytes, so its drivers and libraries do not matter.
        if not host.helper:
            groups.setdefault(host.group, []).append(host)
    for group in groups.values():
        versions = {
            machines[host.name].name: versions_of(facts[host.name], runtime=machines[host.name].runtime)
            for host in group
        }
        problems += differences(versions)
    return problems


def versions_of(facts: Mapping[str, Any], *, runtime: Runtime) -> dict[str, str]:
    """Return the versions that must be equal on machines of one group."""
    driver = {"NVIDIA driver": facts.get("driver") or "none"}
    # Libraries are in the image of a container; the driver is always the machine's.
    return driver if runtime == "docker" else {**driver, **facts.get("libraries", {})}


def differences(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each library or driver of which machines have different versions.

    >>> differences({"a": {"torch": "2.2"}, "b": {"torch": "2.3"}, "c": {}})
    ['torch differs: 2.2 on a; 2.3 on b; none on c']
    """
    lines = []
    for name in sorted({name for machine_versions in versions.values() for name in machine_versions}):
        machines: dict[str, list[str]] = {}
        for machine, machine_versions in versions.items():
            machines.setdefault(machine_versions.get(name, "none"), []).append(machine)
        if len(machines) > 1:
            shown = "; ".join(f"{version} on {', '.join(names)}" for version, names in machines.items())
            lines.append(f"{name} differs: {shown}")
    return lines
