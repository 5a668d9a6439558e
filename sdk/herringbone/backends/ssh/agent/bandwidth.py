"""How fast two machines talk to each other: one listens, the other sends as much as it can for a moment.

listener   tells its port ---- by way of the visitor ----> sender
           <------------------------------------- token, then bytes without end
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import time
from collections.abc import Callable
from typing import Any

from herringbone.backends.ssh.agent.messages import Message

_PATIENCE_SECONDS = 5.0
_CHUNK = bytes(1 << 20)


def take_part(message: Message, listening: Callable[[int], None]) -> dict[str, Any]:
    """Play one role: {"role": "listen", "token"} or {"role": "send", "token", "address", "port", "seconds"}.

    The listener calls `listening` with its port. Both return {"moved", "seconds"} (bytes), or {"trouble": why} when no
    connection came about.
    """
    try:
        if message["role"] == "listen":
            return _listen(message["token"].encode(), listening)
        return _send(message["token"].encode(), message["address"], message["port"], message["seconds"])
    except OSError as error:
        return {"trouble": error.strerror or str(error)}


def _listen(token: bytes, listening: Callable[[int], None]) -> dict[str, Any]:
    with socket.create_server(("", 0)) as server:
        server.settimeout(_PATIENCE_SECONDS)
        listening(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(_PATIENCE_SECONDS)
            greeting = b""
            while len(greeting) < len(token) and (piece := connection.recv(len(token) - len(greeting))):
                greeting += piece
            if not hmac.compare_digest(greeting, token):
                return {"trouble": "a stranger came instead"}
            started, received = time.monotonic(), 0
            while count := len(connection.recv(1 << 20)):
                received += count
            return {"moved": received, "seconds": time.monotonic() - started}


def _send(token: bytes, address: str, port: int, seconds: float) -> dict[str, Any]:
    with socket.create_connection((address, port), timeout=_PATIENCE_SECONDS) as connection:
        started, sent = time.monotonic(), 0
        connection.sendall(token)
        while time.monotonic() - started < seconds:
            sent += connection.send(_CHUNK)
        # All of it has arrived when the other side hangs up as well.
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            connection.recv(1)
        return {"moved": sent, "seconds": time.monotonic() - started}
