"""Listening sockets that let in who knows the job's token, and calls to them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join import handshake

_HANDSHAKE_SECONDS = 5.0
_RETRY_SECONDS = 0.05

Visit = Callable[[socket.socket, dict[str, Any]], None]


class Door:
    """Sockets that listen, and a thread for each connection that comes.

    `visit` gets each connection that has proven to know the token, with the first message it sent; it answers, and
    keeps or closes it. What it raises is sent back. `refused` counts the connections that proved nothing.
    """

    def __init__(self, listeners: Sequence[socket.socket], token: bytes, visit: Visit) -> None:
        self._listeners = tuple(listeners)
        self._token, self._visit = token, visit
        self._lock = threading.Lock()
        self.refused = 0
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="herringbone-door", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listeners[0].getsockname()[1])

    def close(self) -> None:
        for listener in self._listeners:
            # Only this ends an `accept` that another thread waits in.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(_HANDSHAKE_SECONDS)
        try:
            handshake.accept(connection, self._token)
            hello = handshake.receive(connection)
        except (OSError, ParallelError, ValueError):
            with self._lock:
                self.refused += 1
            connection.close()
            return
        try:
            self._visit(connection, hello)
        except (ParallelError, KeyError, TypeError, ValueError) as error:
            with contextlib.suppress(OSError):
                handshake.send(connection, {"error": str(error)})
            connection.close()
        except OSError:
            connection.close()


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a TCP socket that listens; port 0 is any free one. Raises `ParallelError` where that cannot be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise ParallelError(f"cannot listen at {address}, port {port}: {error}") from None


def call(
    where: tuple[str, int] | str,
    who: str,
    token: bytes,
    hello: dict[str, Any],
    until: float,
    source: str | None = None,
    more: float = 0.0,
) -> tuple[socket.socket, dict[str, Any]]:
    """Connect, prove to know the token, say `hello`; return the connection and the answer.

    `where` is a TCP address and port, or the path of a local socket; `who` is what messages call it. Until `until`
    (by `time.monotonic`) who does not listen yet is tried again; the answer is waited for `more` seconds longer.
    """
    while True:
        try:
            connection = _reach(where, source, until)
            break
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > until:
                raise ParallelError(f"{who} cannot be reached at {where}: {error}") from None
            time.sleep(_RETRY_SECONDS)
    try:
        connection.settimeout(_HANDSHAKE_SECONDS)
        handshake.connect(connection, token)
        connection.settimeout(max(until - time.monotonic(), 0.1) + more)
        handshake.send(connection, hello)
        return connection, handshake.receive(connection)
    except handshake.RefusedError as error:
        connection.close()
        raise ParallelError(f"{who} at {where}: {error}") from None
    except OSError as error:
        connection.close()
        raise ParallelError(f"{who} at {where} did not answer while connecting: {error}") from None
    except BaseException:
        connection.close()
        raise


def _reach(where: tuple[str, int] | str, source: str | None, until: float) -> socket.socket:
    patience = min(max(until - time.monotonic(), 0.1), 5.0)
    if not isinstance(where, str):
        return socket.create_connection(where, patience, (source, 0) if source else None)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(patience)
        connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return connection
