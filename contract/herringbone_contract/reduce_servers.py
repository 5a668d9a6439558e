"""Sums between hosts: the names of rails; the servers on helper hosts, their addresses, and advice on their number.

A rail is a network interface of a host, or a network that libfabric reaches from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.errors import ContractError

# The prefix of libfabric's providers: "fabric:efa", or with a device of the provider "fabric:efa/rdmap16s27-rdm".
FABRIC = "fabric:"
_FABRIC_RAIL = re.compile(r"fabric:[\w;.-]+(/[^\s,/]+)?")
# The kernel's IFNAMSIZ, less the byte that ends the name.
_MAX_INTERFACE_CHARS = 15
_SERVER = re.compile(r"([^=,]+)=([^=,]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ReduceServer:
    """The server of one helper host: the host's name, and the address and TCP port to connect to."""

    host: str
    address: str
    port: int


def encode(servers: Sequence[ReduceServer]) -> str:
    """Write servers as one word, in their order: the value of `ReduceVariable.SERVERS`.

    >>> encode([ReduceServer("algo-3", "10.0.0.5", 7601), ReduceServer("algo-4", "fd00::6", 7601)])
    'algo-3=10.0.0.5:7601,algo-4=fd00::6:7601'
    """
    return ",".join(f"{server.host}={server.address}:{server.port}" for server in servers)


def decode(text: str) -> tuple[ReduceServer, ...]:
    """Read a text that `encode` wrote; an empty text means no servers. Raises `ContractError` for any other text.

    >>> decode("algo-3=10.0.0.5:7601")
    (ReduceServer(host='algo-3', address='10.0.0.5', port=7601),)
    """
    servers = []
    for part in text.split(",") if text else ():
        match = _SERVER.fullmatch(part)
        if match is None:
            raise ContractError(f"a list of reduce servers: {part!r} is not HOST=ADDRESS:PORT")
        servers.append(ReduceServer(match[1], match[2], int(match[3])))
    return tuple(servers)


def advice(*, training_hosts: int, helpers: int) -> str | None:
    """Return advice when some helper hosts bring nothing; None when all of them help.

    >>> advice(training_hosts=4, helpers=4) is None
    True

    With as many helpers as training hosts, each training host sends its gradients once and receives the sums once.
    Less is not possible. Proof: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training", OSDI
    2020.
    """
    if not helpers:
        return None
    if training_hosts == 1:
        return "one host trains, so no gradients cross the network, and helper hosts have nothing to do; leave them out"
    # Each helper still shortens the sums up to this number.
    if helpers <= training_hosts:
        return None
    return (
        f"{helpers} helper hosts for {training_hosts} that train: those beyond {training_hosts} bring nothing, for each"
        f" host that trains then sends its gradients only once; take {training_hosts}"
    )


def is_rail(name: str) -> bool:
    """Return True if a rail can have this name.

    >>> is_rail("eth0"), is_rail("fabric:efa"), is_rail("10.0.0.0/8"), is_rail("fabric:")
    (True, True, False, False)
    """
    if name.startswith(FABRIC):
        return _FABRIC_RAIL.fullmatch(name) is not None
    # The kernel allows no slash and no space in a name; a comma separates rails in `ReduceVariable.RAILS`.
    return bool(name) and len(name) <= _MAX_INTERFACE_CHARS and not set(name) & set(",/ \t\n")


def are_mixed(rails: Sequence[str]) -> bool:
    """Return True if some rails use libfabric and some do not: a sum would wait for the slower ones."""
    return len({name.startswith(FABRIC) for name in rails}) > 1
