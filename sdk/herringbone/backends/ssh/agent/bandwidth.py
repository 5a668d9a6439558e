"""Measure the bandwidth between two machines: one listens, the other sends as much as it can for a moment.

listener   reports its port ---- through the client ----> sender
           <------------------------------------- token, then bytes for some seconds
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import time
from collections.abc import Callable
from typing import Any

from herringbone.backends.ssh.agent.messages import Message

_TIMEOUT_SECONDS = 5.0
_CHUNK = bytes(1 << 20)


def measure(message: Message, listening: Callable[[int], None]) -> dict[str, Any]:
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
        server.settimeout(_TIMEOUT_SECONDS)
        listening(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            first_bytes = b""
            # TCP may deliver the token in several pieces.
            while len(first_bytes) < len(token) and (piece := connection.recv(len(token) - len(first_bytes))):
                first_bytes += piece
            # The port is open to the whole network, so a port scan may connect before the sender does.
            if not hmac.compare_digest(first_bytes, token):
                return {"trouble": "another program connected instead of the sender"}
            started, received = time.monotonic(), 0
            while count := len(connection.recv(1 << 20)):
                received += count
            return {"moved": received, "seconds": time.monotonic() - started}


def _send(token: bytes, address: str, port: int, seconds: float) -> dict[str, Any]:
    with socket.create_connection((address, port), timeout=_TIMEOUT_SECONDS) as connection:
        started, sent = time.monotonic(), 0
        connection.sendall(token)
        while time.monotonic() - started < seconds:
            sent += connection.send(_CHUNK)
        # The listener closes after the last byte. Until then bytes are in the socket's buffer and not yet delivered.
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            connection.recv(1)
        return {"moved": sent, "seconds": time.monotonic() - started}
