"""Accept connections from processes that know the job's token, and connect to such listeners."""

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

Admit = Callable[[socket.socket, dict[str, Any]], None]


class Acceptor:
    """Sockets that listen, with one thread for each of them and one for each connection.

        acceptor = Acceptor([listen("10.0.0.5")], token, admit)

    `admit` gets each connection that has proven to know the token, together with its hello (its first message). `admit`
    answers the hello, and keeps or closes the connection. The text of an error that `admit` raises is sent to the other
    end. `refused` counts the connections without a proof.
    """

    def __init__(self, listeners: Sequence[socket.socket], token: bytes, admit: Admit) -> None:
        self._listeners = tuple(listeners)
        self._token, self._admit = token, admit
        # Guards `refused`, which the threads of several connections increment.
        self._lock = threading.Lock()
        self.refused = 0
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="herringbone-acceptor", daemon=True).start()

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return int(self._listeners[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening; connections that were admitted stay open."""
        for listener in self._listeners:
            # On Linux, closing a socket does not wake a thread that is blocked in `accept`; shutting it down does.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # `close` shut the listener down
            # A thread per connection, because `admit` may wait for other connections.
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        # The timeout bounds each read, so a silent stranger cannot hold this thread for long.
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
            self._admit(connection, hello)
        except (ParallelError, KeyError, TypeError, ValueError) as error:
            # KeyError, TypeError and ValueError come from a malformed hello, which is the other end's mistake.
            with contextlib.suppress(OSError):
                handshake.send(connection, {"error": str(error)})
            connection.close()
        except OSError:
            connection.close()


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a listening TCP socket; port 0 is any free port. Raises `ParallelError` if the address is not usable."""
    # Only IPv6 addresses have colons.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # All ranks of a job may connect to rank 0 within milliseconds, hence the large backlog.
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise ParallelError(f"cannot listen at {address}, port {port}: {error}") from None


def connect(
    address: tuple[str, int] | str,
    label: str,
    token: bytes,
    hello: dict[str, Any],
    deadline: float,
    source: str | None = None,
    extra_seconds: float = 0.0,
) -> tuple[socket.socket, dict[str, Any]]:
    """Connect, prove knowledge of the token and send `hello`; return the connection and the answer.

    `address` is a TCP address and port, or the path of a Unix socket. Messages call the other end `label`. Until
    `deadline` (of `time.monotonic`) a connection that is refused is retried. The answer may take `extra_seconds`
    longer. `source` is the local address to connect from. Raises `ParallelError` naming `label`.
    """
    while True:
        try:
            connection = _open(address, source, deadline)
            break
        except OSError as error:
            # The other end may simply not listen yet: processes of a job start in any order.
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise ParallelError(f"{label} cannot be reached at {address}: {error}") from None
            time.sleep(_RETRY_SECONDS)
    try:
        connection.settimeout(_HANDSHAKE_SECONDS)
        handshake.connect(connection, token)
        # The answer may wait for other ranks, unlike the handshake.
        connection.settimeout(max(deadline - time.monotonic(), 0.1) + extra_seconds)
        handshake.send(connection, hello)
        return connection, handshake.receive(connection)
    except handshake.RefusedError as error:
        connection.close()
        raise ParallelError(f"{label} at {address}: {error}") from None
    except OSError as error:
        connection.close()
        raise ParallelError(f"{label} at {address} did not answer while connecting: {error}") from None
    except BaseException:
        connection.close()
        raise


def _open(address: tuple[str, int] | str, source: str | None, deadline: float) -> socket.socket:
    # A host that is down may not answer at all, so each attempt has a limit of its own.
    timeout = min(max(deadline - time.monotonic(), 0.1), 5.0)
    if not isinstance(address, str):
        return socket.create_connection(address, timeout, (source, 0) if source else None)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection
