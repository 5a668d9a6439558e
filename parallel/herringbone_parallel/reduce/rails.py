"""The network interfaces of this host that connections are spread over, by name."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

from herringbone_spec.errors import ParallelError

_SIOCGIFADDR = 0x8915
_LIBFABRIC = ("efa", "rdmap", "ibp", "mlx5_")


def addresses_of(rails: Sequence[str]) -> tuple[str, ...]:
    """Return each interface's IPv4 address; raises `ParallelError` for one that is unknown or has none.

    >>> addresses_of(["lo"])
    ('127.0.0.1',)
    """
    return tuple(map(_address, rails))


def rail_of(server: int, rank: int, rails: int) -> int:
    """Return which rail the connection between a rank and a server uses: each has its share. Pure."""
    return (server + rank) % rails


def _address(name: str) -> str:
    known = [interface for _, interface in socket.if_nameindex()]
    if name not in known:
        hint = (
            ": it looks like an RDMA device; this release moves bytes over TCP, so name the network interface beside it"
            if name.startswith(_LIBFABRIC)
            else ""
        )
        raise ParallelError(f"rail {name!r} is no network interface of this host{hint}. It has: {', '.join(known)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            raise ParallelError(f"rail {name!r} has no IPv4 address: {error}") from None
    return socket.inet_ntoa(answer[20:24])
