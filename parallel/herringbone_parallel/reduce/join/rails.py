"""The rails of a process: named network interfaces, or networks of libfabric, over which its connections are spread."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join.fabric import FabricRail, Relay, fabric_rails
from herringbone_parallel.reduce.join.wire_values import MOST_RANKS, whole

_SIOCGIFADDR = 0x8915
# Prefixes that Linux gives RDMA devices, as opposed to network interfaces.
_RDMA = ("efa", "rdmap", "ibp", "mlx5_")


class Rails:
    """The open rails of one process; `names` are `Settings.rails`, `address` is the one to use without any.

        rails = Rails(("eth0", "eth1"), "10.0.0.5")
        rails.addresses                                  # the addresses to listen at
        rails.source(server=3, rank=1)                   # the address to connect from
        offer = rails.offer(server=3, rank=1)            # travels with the hello; None without libfabric
        connection = rails.carry(connection, offer, their_offer)

    Raises `ParallelError` for an unknown rail. With rails of libfabric the process still listens at `address`: TCP
    connections carry the handshake and then serve as lifelines.
    """

    def __init__(self, names: Sequence[str], address: str) -> None:
        fabrics = fabric_rails(names)
        # With libfabric, TCP carries only handshakes and lifelines, so one address is enough.
        self._interfaces = () if fabrics else addresses_of(names)
        self._relays = tuple(Relay(rail, _bound_to(rail, address)) for rail in fabrics)
        self.addresses = self._interfaces or (address,)

    def source(self, server: int, rank: int) -> str | None:
        """Return the local address from which to connect to a server; None lets the system choose."""
        return self._interfaces[rail_of(server, rank, len(self._interfaces))] if self._interfaces else None

    def offer(self, server: int, rank: int) -> dict[str, Any] | None:
        """Return the data that the other end needs to use libfabric; None if connections are sockets."""
        return self._offer(rail_of(server, rank, len(self._relays))) if self._relays else None

    def answer(self, theirs: object) -> dict[str, Any] | None:
        """Return the offer that answers the other end's, on the same rail."""
        if not self._relays or not isinstance(theirs, dict):
            return None
        rail = whole(theirs, "rail", 0, MOST_RANKS)
        if rail >= len(self._relays):
            raise ParallelError(
                f"the other end uses its rail {rail}, but there are {len(self._relays)} here: name as many on both"
            )
        return self._offer(rail)

    def carry(self, connection: socket.socket, own: dict[str, Any] | None, theirs: object) -> socket.socket:
        """Return the socket that the core is to use: the connection itself, or one that libfabric carries."""
        if own is None and theirs is None:
            return connection
        if own is None:
            raise ParallelError("the rails of the other end are libfabric's, those here are not: name the same on both")
        return self._relays[int(own["rail"])].carry(connection, own, theirs)

    def start(self) -> None:
        """Start to move bytes; call it once all connections are made, because a running relay accepts no more."""
        for relay in self._relays:
            relay.start()

    def close(self) -> None:
        """Close all rails; call it after the cores have closed, so that their last messages still travel."""
        for relay in self._relays:
            relay.close()

    def _offer(self, rail: int) -> dict[str, Any]:
        # The number tells the other end which of its own rails to use.
        return {"rail": rail, **self._relays[rail].offer()}


def addresses_of(rails: Sequence[str]) -> tuple[str, ...]:
    """Return each interface's IPv4 address; raises `ParallelError` for an interface that is unknown or has none.

    >>> addresses_of(["lo"])
    ('127.0.0.1',)
    """
    return tuple(map(_address, rails))


def rail_of(server: int, rank: int, rails: int) -> int:
    """Return the rail of the connection between a rank and a server, so that all rails get their share. Pure."""
    # The sum spreads a rank's servers over the rails as well as a server's ranks.
    return (server + rank) % rails


def _bound_to(rail: FabricRail, address: str) -> str:
    """Return the address for a provider with IP addresses: the named interface's, or the default one."""
    if rail.domain is None:
        return address
    # A domain that is no interface is an RDMA device, which has no IP address to bind to.
    return _address(rail.domain) if rail.domain in _interfaces() else ""


def _interfaces() -> list[str]:
    return [interface for _, interface in socket.if_nameindex()]


def _address(name: str) -> str:
    interfaces = _interfaces()
    if name not in interfaces:
        hint = (
            ": it looks like an RDMA device, which libfabric reaches: 'fabric:efa', 'fabric:verbs'"
            if name.startswith(_RDMA)
            else ""
        )
        raise ParallelError(
            f"rail {name!r} is no network interface of this host{hint}. It has: {', '.join(interfaces)}"
        )
    # The standard library has no call for an interface's address; the kernel answers this request on any IPv4 socket.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise ParallelError(f"rail {name!r} has no IPv4 address: {error}") from None
    # `struct ifreq`: 16 bytes of name, then a sockaddr_in whose address is behind 4 bytes of family and port.
    return socket.inet_ntoa(answer[20:24])
