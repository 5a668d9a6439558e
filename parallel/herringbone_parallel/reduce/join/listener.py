"""Accept connections from processes that know the job's token, and connect to such listeners.

Nobody without the token can end a listener: a stranger's connection is closed after a few seconds, earlier if there
are many, and a listener without descriptors or threads waits until some are free again.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection, RefusedError

_HANDSHAKE_SECONDS = 5.0
_RETRY_SECONDS = 0.05
# A handshake takes milliseconds. When there are too many, those that have taken longer than this end first. Behind
# 2,000 silent strangers, a process of the job waits 0.8 s.
_GRACE_SECONDS = 0.1
_MOST_HANDSHAKES = 256

Admit = Callable[[AuthenticatedConnection, dict[str, Any]], None]


class Acceptor:
    """Sockets that listen, with one thread for each of them and one for each connection.

        acceptor = Acceptor([listen("10.0.0.5")], token, "rank 0", admit)

    `label` is the name by which `connect` calls this process: a connection that was meant for another one is refused.
    `admit` gets each connection that has proven to know the token, together with its hello (its first message). `admit`
    answers the hello, and keeps or closes the connection. The text of an error that `admit` raises is sent to the other
    end. `refused` counts the connections without a proof within `patience` seconds.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: bytes,
        label: str,
        admit: Admit,
        patience: float = _HANDSHAKE_SECONDS,
    ) -> None:
        self._listeners = tuple(listeners)
        self._token, self._label, self._admit, self._patience = token, label, admit, patience
        self._handshakes = _Handshakes(_most_handshakes())
        self._closed = threading.Event()
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
        self._closed.set()
        for listener in self._listeners:
            # On Linux, closing a socket does not wake a thread that is blocked in `accept`; shutting it down does.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return  # `close` shut the listener down
                # No descriptor or memory is left, or a caller has gone. Those that wait are served later.
                self._make_room()
                continue
            self._handshakes.enter(connection)
            try:
                # A thread per connection, because `admit` may wait for other connections.
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()
            except (RuntimeError, MemoryError):  # the process has as many threads as it may have
                self._handshakes.leave(connection)
                connection.close()
                self._make_room()

    def _make_room(self) -> None:
        self._handshakes.end_oldest()
        self._closed.wait(_RETRY_SECONDS)

    def _receive(self, connection: socket.socket) -> None:
        until = time.monotonic() + self._patience
        try:
            authenticated = handshake.accept(connection, self._token, until)
            first = authenticated.receive(until)
        except Exception:  # noqa: BLE001  whatever a stranger sends costs the stranger its connection, nothing else
            with self._lock:
                self.refused += 1
            connection.close()
            return
        finally:
            self._handshakes.leave(connection)
        try:
            self._admit(authenticated, _addressed(first, self._label))
        except OSError:
            connection.close()
        except Exception as error:  # noqa: BLE001  a malformed hello is the other end's mistake, whatever it raises
            text = str(error) if isinstance(error, ParallelError) else f"a malformed hello: {error!r}"
            with contextlib.suppress(OSError):
                authenticated.send({"error": text})
            connection.close()


class _Handshakes:
    """The connections that have proven nothing yet: at most `most`, so that strangers cannot take all descriptors."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Guards `_since`: when each connection came, the oldest first.
        self._changed = threading.Condition()
        self._since: dict[socket.socket, float] = {}

    def enter(self, connection: socket.socket) -> None:
        """Add a connection. Waits for room, and makes room at the cost of the oldest one if it has had its time."""
        with self._changed:
            while len(self._since) >= self._most:
                oldest, since = next(iter(self._since.items()))
                left = since + _GRACE_SECONDS - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                else:
                    self._end(oldest)
            self._since[connection] = time.monotonic()

    def leave(self, connection: socket.socket) -> None:
        """Remove a connection whose handshake is over; the caller closes it only afterwards."""
        with self._changed:
            self._since.pop(connection, None)
            self._changed.notify_all()

    def end_oldest(self) -> None:
        """End the oldest handshake, if there is one."""
        with self._changed:
            if self._since:
                self._end(next(iter(self._since)))

    def _end(self, connection: socket.socket) -> None:
        """Wake the connection's thread, which then closes it. Requires `_changed`."""
        del self._since[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _most_handshakes() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_HANDSHAKES if limit == resource.RLIM_INFINITY else max(1, min(_MOST_HANDSHAKES, limit // 4))


def _addressed(first: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the hello in a connection's first message; raises `ParallelError` if it was meant for another process."""
    if first["to"] != label:
        raise ParallelError(
            f"this is {label}, and the connection was meant for {first['to']}: something between the hosts changes"
            " addresses, or two processes have each other's port"
        )
    hello: dict[str, Any] = first["hello"]
    return hello


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
) -> tuple[AuthenticatedConnection, dict[str, Any]]:
    """Connect, prove knowledge of the token and send `hello`; return the connection and the answer.

    connection, answer = connect(("10.0.0.5", 7601), "rank 0", token, {"rank": 1}, time.monotonic() + 60)

    `address` is a TCP address and port, or the path of a Unix socket. Messages call the other end `label`, and the
    other end refuses the connection if that is not its label. Until `deadline` (of `time.monotonic`), a connection that
    is refused or that ends before the proofs is retried. The answer may take `extra_seconds` longer. `source` is the
    local address to connect from. Raises `ParallelError` naming `label`.
    """
    connection = _authenticate(address, label, token, deadline, source)
    try:
        connection.send({"to": label, "hello": hello})
        # The answer may wait for other ranks, unlike the handshake.
        answer = connection.receive(max(deadline, time.monotonic() + 0.1) + extra_seconds)
        return connection, answer
    except OSError as error:
        connection.close()
        raise ParallelError(f"{label} at {address} did not answer while connecting: {error}") from None
    except BaseException:
        connection.close()
        raise


def _authenticate(
    address: tuple[str, int] | str, label: str, token: bytes, deadline: float, source: str | None
) -> AuthenticatedConnection:
    """Connect until both ends have proven themselves; raises `ParallelError` naming `label`."""
    while True:
        plain = None
        try:
            plain = _open(address, source, deadline)
            return handshake.connect(plain, token, time.monotonic() + _HANDSHAKE_SECONDS)
        except RefusedError as error:
            assert plain is not None
            plain.close()
            raise ParallelError(f"{label} at {address}: {error}") from None
        except OSError as error:
            if plain is not None:
                plain.close()
            # The other end may not listen yet, since processes of a job start in any order, or strangers keep it busy.
            if time.monotonic() + _RETRY_SECONDS > deadline:
                reason = "cannot be reached" if plain is None else "did not answer while connecting"
                raise ParallelError(f"{label} {reason} at {address}: {error}") from None
            time.sleep(_RETRY_SECONDS)
        except BaseException:
            if plain is not None:
                plain.close()
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
