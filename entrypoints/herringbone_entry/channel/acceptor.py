"""Where ranks of mpirun's come in, and its agents: whoever connects says first who it is."""

from __future__ import annotations

import socket
from collections.abc import Callable

from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.channel.listener import listen
from herringbone_entry.supervisor.event_loop import Loop


class Reception:
    """Listens at `path`; `on_greeting` gets each guest's wire and its first message, and may close the wire.

    A guest that leaves, or talks nonsense, is shown out. Raises `OSError` from the constructor.
    """

    def __init__(self, path: str, backlog: int, loop: Loop, on_greeting: Callable[[Wire, Message], None]) -> None:
        self._loop, self._on_greeting = loop, on_greeting
        self._socket: socket.socket = listen(path, backlog)
        loop.read(self._socket.fileno(), self._admit)

    def close(self) -> None:
        self._loop.forget(self._socket.fileno())
        self._socket.close()

    def _admit(self) -> None:
        connection, _ = self._socket.accept()
        connection.setblocking(False)
        wire = Wire(connection)

        def greet() -> None:
            try:
                messages = wire.receive()
            except (EOFError, WireError):
                self._loop.forget(wire.fileno())
                wire.close()
                return
            if messages:
                self._loop.forget(wire.fileno())
                self._on_greeting(wire, messages[0])

        self._loop.read(wire.fileno(), greet)
