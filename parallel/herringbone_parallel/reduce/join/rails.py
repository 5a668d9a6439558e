"""What connections to other hosts are spread over, by name: network interfaces, or networks that libfabric reaches."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join.fabric import FabricRail, Relay, fabric_rails

_SIOCGIFADDR = 0x8915
_RDMA = ("efa", "rdmap", "ibp", "mlx5_")


class Rails:
    """The rails of one process, opened; `names` are `Settings.rails`, `way_out` its address without any.

        rails = Rails(("eth0", "eth1"), "10.0.0.5")
        rails.addresses                                  # where to listen
        rails.source(server=3, rank=1)                   # where to call from
        own = rails.offer(server=3, rank=1)              # None, but over libfabric: goes with the first words
        connection = rails.carry(connection, own, theirs)

    Raises `ParallelError` for what is not there. Over libfabric the door is at `way_out`.
    """

    def __init__(self, names: Sequence[str], way_out: str) -> None:
        fabrics = fabric_rails(names)
        self._interfaces = () if fabrics else addresses_of(names)
        self._relays = tuple(Relay(rail, _bound_to(rail, way_out)) for rail in fabrics)
        self.addresses = self._interfaces or (way_out,)

    def source(self, server: int, rank: int) -> str | None:
        """Return the address to call a server from; None: the system chooses."""
        return self._interfaces[rail_of(server, rank, len(self._interfaces))] if self._interfaces else None

    def offer(self, server: int, rank: int) -> dict[str, Any] | None:
        """Return what the other end must know to use libfabric; None where connections are sockets."""
        return self._offer(rail_of(server, rank, len(self._relays))) if self._relays else None

    def answer(self, theirs: object) -> dict[str, Any] | None:
        """Return the offer that goes with the other end's."""
        if not self._relays or not isinstance(theirs, dict):
            return None
        rail = int(theirs["rail"])
        if not 0 <= rail < len(self._relays):
            raise ParallelError(f"the other end uses its rail {rail}, there are {len(self._relays)} here: name as many")
        return self._offer(rail)

    def carry(self, connection: socket.socket, own: dict[str, Any] | None, theirs: object) -> socket.socket:
        """Return what the core is to use: the connection itself, or what libfabric has instead."""
        if own is None and theirs is None:
            return connection
        if own is None:
            raise ParallelError("the rails of the other end are libfabric's, those here are not: name the same")
        return self._relays[int(own["rail"])].carry(connection, own, theirs)

    def start(self) -> None:
        """Begin to carry; called once all connections are there."""
        for relay in self._relays:
            relay.start()

    def close(self) -> None:
        """Call it after the cores: what they sent last is carried still."""
        for relay in self._relays:
            relay.close()

    def _offer(self, rail: int) -> dict[str, Any]:
        return {"rail": rail, **self._relays[rail].offer()}


def addresses_of(rails: Sequence[str]) -> tuple[str, ...]:
    """Return each interface's IPv4 address; raises `ParallelError` for one that is unknown or has none.

    >>> addresses_of(["lo"])
    ('127.0.0.1',)
    """
    return tuple(map(_address, rails))


def rail_of(server: int, rank: int, rails: int) -> int:
    """Return which rail the connection between a rank and a server uses: each has its share. Pure."""
    return (server + rank) % rails


def _bound_to(rail: FabricRail, way_out: str) -> str:
    """Return the address for a provider that has the network's own: of its interface, if it names one."""
    if rail.domain is None:
        return way_out
    return _address(rail.domain) if rail.domain in _interfaces() else ""


def _interfaces() -> list[str]:
    return [interface for _, interface in socket.if_nameindex()]


def _address(name: str) -> str:
    known = _interfaces()
    if name not in known:
        hint = (
            ": it looks like an RDMA device, which libfabric reaches: 'fabric:efa', 'fabric:verbs'"
            if name.startswith(_RDMA)
            else ""
        )
        raise ParallelError(f"rail {name!r} is no network interface of this host{hint}. It has: {', '.join(known)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise ParallelError(f"rail {name!r} has no IPv4 address: {error}") from None
    return socket.inet_ntoa(answer[20:24])
