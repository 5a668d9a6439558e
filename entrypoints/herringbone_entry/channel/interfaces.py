"""Find the network interface of this host that leads to the other hosts."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from herringbone_entry.host import Host

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16


def pick(named: Sequence[str | None], local_address: str | None, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Return the interface that the job names, else the one whose address talks to the others, else a usual one.

    `named` holds the job's choice, then names that are usual on such hosts; an interface that this host does not have
    is skipped. `interfaces` are this host's, with their addresses.

    >>> pick([None, "eth0"], "10.0.1.2", {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"], "eth1": ["10.0.1.2"]})
    'eth1'
    """
    leading = next((name for name, addresses in interfaces.items() if local_address in addresses), None)
    first, *rest = named
    return next((name for name in (first, leading, *rest) if name in interfaces), None)


def interface_of(host: Host, local_address: str | None, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Return the interface of a host that leads to the others; None when it has none of the usual ones either."""
    # The file's own entry, and not the default that the contract fills in for a missing one.
    named = host.resource_config.get("network_interface_name")
    return pick((named, host.resources.network_interface), local_address, interfaces)


def variables(host: Host, interface: str | None) -> dict[str, str]:
    """Return the variables that lead torch to the interface of the other hosts, unless the user has set them."""
    if interface is None:
        return {}
    # On one machine NCCL finds better ways than the loopback interface, so it gets no name there.
    names = ["GLOO_SOCKET_IFNAME"] if host.on_one_machine else ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    return {name: interface for name in names if name not in host.base_environment}


def interfaces() -> dict[str, list[str]]:
    """Return this host's interfaces, each with its addresses."""
    addresses_of: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, addresses in addresses_of.items():
            try:
                request = struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address, or this system has another request for it
            # The answer is a struct ifreq: 16 bytes of name, then a sockaddr_in whose address begins at its byte 4.
            addresses.append(socket.inet_ntoa(answer[20:24]))
    # The request above knows IPv4 alone.
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return addresses_of
    for line in lines:
        digits, *_, name = line.split()
        addresses_of.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return addresses_of


def local_address(connection: socket.socket) -> str | None:
    """Return the address of this host's end of a connection; None for a Unix socket."""
    if connection.family == socket.AF_UNIX:
        return None
    address = str(connection.getsockname()[0]).partition("%")[0]
    # A listener for both kinds of addresses writes an IPv4 address in this form.
    return address.removeprefix("::ffff:") if "." in address else address
