"""Accept connections of this host's ranks and of mpirun's agents; each sends one hello first."""

from __future__ import annotations

import socket
from collections.abc import Callable

from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.event_loop import Loop


class Acceptor:
    """Listens at `path` and calls `on_hello` with each client's wire and first message; `on_hello` may close the wire.

    A client that leaves, or whose hello is no message or makes `on_hello` raise, is disconnected. Raises `OSError` from
    the constructor.
    """

    def __init__(self, path: str, backlog: int, loop: Loop, on_hello: Callable[[Wire, Message], None]) -> None:
        self._loop, self._on_hello = loop, on_hello
        self._socket: socket.socket = listen(path, backlog)
        loop.read(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept nobody any more; connections that exist stay open."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # the client left between the loop's look and this call
        # Linux does not pass O_NONBLOCK on from the listening socket to the accepted one.
        connection.setblocking(False)
        # No proof of a secret is needed: the socket lies in a folder that only this user can open.
        wire = Wire(connection)

        def receive_hello() -> None:
            try:
                messages = wire.receive(1)
                if messages:
                    # `on_hello` decides who reads this wire next, and the loop takes one reader per descriptor.
                    self._loop.forget(wire.fileno())
                    self._on_hello(wire, messages[0])
            except (EOFError, WireError, KeyError, TypeError, ValueError):
                # The user's script can connect here, and may send any object.
                self._loop.forget(wire.fileno())
                wire.close()

        self._loop.read(wire.fileno(), receive_hello)
