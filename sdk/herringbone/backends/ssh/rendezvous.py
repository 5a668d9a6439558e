"""Where hosts on different machines meet: by which address the others reach one, over which interface. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.inventory import Machine
from herringbone_contract.errors import HostError


@dataclass(frozen=True, slots=True)
class Place:
    """One machine on the network of the others; `interface` is empty where nobody knows it, `port` None where none is
    free.
    """

    machine: str
    address: str
    interface: str
    port: int | None


def place_of(machine: Machine, hello: Message) -> Place:
    """Return where a machine is, from the inventory and from what it says of itself.

    >>> place_of(Machine(name="gpu-1"),
    ...          {"address": "10.0.0.1", "interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.1"}, "port": 7590})
    Place(machine='gpu-1', address='10.0.0.1', interface='eth0', port=7590)

    The inventory's word counts; without one it is the address that ssh came to. Raises `HostError` for an interface
    that the machine does not have.
    """
    interfaces: dict[str, str] = hello["interfaces"]
    if machine.interface is not None and machine.interface not in interfaces:
        known = ", ".join(interfaces) or "none"
        raise HostError(f"{machine.name}: it has no interface {machine.interface!r} with an address; it has: {known}")
    address = machine.address or interfaces.get(machine.interface or "") or hello["address"] or machine.destination
    leading = next((name for name, own in interfaces.items() if own == address), "")
    return Place(machine.name, address, machine.interface or leading, hello["port"])


def control_of(first: Place) -> str:
    """Return where the supervisors of a job meet, as `HostVariable.CONTROL` says it."""
    if first.port is None:
        raise HostError(f"{first.machine}: none of the ports 7590 to 7689 is free for the other hosts to come to")
    return f"tcp:{first.address}:{first.port}"
