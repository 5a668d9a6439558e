"""The address of the control channel: a socket of this machine, or a port of the first host.

unix:PATH        hosts are processes of one machine: the file exists once the first host listens
tcp:HOST:PORT    the first host listens on all its addresses; its name may not even resolve before it is up
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from herringbone_contract.errors import ContractError, LaunchError
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.event_loop import Loop, Timer

# Nobody answers the first packet to a host that is not up yet, and the kernel repeats it only after 1, 3 and 7
# seconds. A new attempt is faster.
_ATTEMPT_SECONDS = 1.0
_MISSED_PROBES = 3
_SEND_BYTES = 1 << 20


OnEnd = Callable[[socket.socket | None], None]


class Address(Protocol):
    """Lets the first host listen and another host connect."""

    def listen(self, backlog: int) -> socket.socket:
        """Return a listening, non-blocking socket. Raises `LaunchError`."""

    def connect(self, loop: Loop, on_end: OnEnd) -> None:
        """Try once; `on_end` gets the connection, or None when nobody listens yet.

        Raises `ConnectionRefusedError` when the first host did listen, and no longer does.
        """

    def set_up(self, connection: socket.socket) -> None:
        """Prepare a connection for small messages between hosts that may vanish."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A path at which the first host listens, on the machine that all hosts share."""

    path: str

    def listen(self, backlog: int) -> socket.socket:
        try:
            return listen(self.path, backlog)
        except OSError as error:
            raise LaunchError(f"control channel: cannot listen at {self.path}: {error}") from error

    def connect(self, loop: Loop, on_end: OnEnd) -> None:  # noqa: ARG002 - the kernel answers at once
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self.path)
        except (FileNotFoundError, BlockingIOError):
            # The first host does not listen yet, or its queue of connections is full.
            connection.close()
            on_end(None)
        except OSError as error:
            # The socket's file outlives its listener, and never exists before it listens: see `unix_socket.listen`.
            connection.close()
            raise ConnectionRefusedError(f"{self.path}: {error}") from error
        else:
            on_end(connection)

    def set_up(self, connection: socket.socket) -> None:
        connection.setblocking(False)


@dataclass(frozen=True, slots=True)
class TCPAddress:
    """A port of the first host. The kernel gives up a machine that is silent for three times `heartbeat` (seconds).

    A machine can vanish before the job starts, when hosts do not send heartbeats yet. Only the kernel notices then.
    """

    host: str
    port: int
    heartbeat: float

    def listen(self, backlog: int) -> socket.socket:
        try:
            if socket.has_dualstack_ipv6():
                # One socket for both kinds of addresses: names of the first host may resolve to either.
                both = socket.AF_INET6
                listener = socket.create_server(("", self.port), family=both, backlog=backlog, dualstack_ipv6=True)
            else:
                listener = socket.create_server(("", self.port), backlog=backlog)
        except OSError as error:
            raise LaunchError(f"control channel: cannot listen at port {self.port} of this host: {error}") from error
        # A client may leave between the loop's look and `accept`, which must not block then.
        listener.setblocking(False)
        return listener

    def connect(self, loop: Loop, on_end: OnEnd) -> None:
        """Try once. Refused, unreachable and unknown all mean "not yet": none of them proves that somebody listened."""

        def reach(resolved: ResolvedAddress | None) -> None:
            if resolved is None:
                on_end(None)
            else:
                _ConnectionAttempt(resolved, loop, on_end)

        NameLookup(self.host, self.port, loop, reach)

    def set_up(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # Messages are small and urgent; Nagle's algorithm would hold each one back until the last is acknowledged.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Messages that wait for a busy host must fit into this buffer, which the kernel may make as small as 16 KiB.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, round(self.heartbeat))
        # TCP_USER_TIMEOUT counts while data is unacknowledged, when the kernel sends no keep-alive probes.
        # macOS calls the first option TCP_KEEPALIVE, and lacks the last one.
        limits = {
            "TCP_KEEPIDLE": seconds,
            "TCP_KEEPINTVL": seconds,
            "TCP_KEEPCNT": _MISSED_PROBES,
            "TCP_USER_TIMEOUT": seconds * 1000 * _MISSED_PROBES,
        }
        for name, value in limits.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@dataclass(frozen=True, slots=True)
class ResolvedAddress:
    """A socket address that a name resolves to."""

    family: int
    address: tuple[object, ...]


class NameLookup:
    """Resolves a name in a thread: a name server may take seconds to say that it does not know the name."""

    def __init__(self, host: str, port: int, loop: Loop, on_answer: Callable[[ResolvedAddress | None], None]) -> None:
        # The thread alone writes `_answer`, and the loop's thread reads it only after the socket has closed.
        self._answer: ResolvedAddress | None = None
        ours, theirs = socket.socketpair()

        def look_up() -> None:
            try:
                family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                self._answer = ResolvedAddress(family, address)
            except (OSError, UnicodeError):
                pass
            # The end of the socket wakes the loop, which sleeps in `select` and cannot wait for a thread.
            theirs.close()

        def receive_answer() -> None:
            loop.forget(ours.fileno())
            ours.close()
            on_answer(self._answer)

        loop.read(ours.fileno(), receive_answer)
        # A daemon thread: a job that ends does not wait for a slow name server.
        threading.Thread(target=look_up, daemon=True).start()


class _ConnectionAttempt:
    """One attempt to connect; ends with a connection or with None."""

    def __init__(self, resolved: ResolvedAddress, loop: Loop, on_end: OnEnd) -> None:
        self._loop, self._on_end = loop, on_end
        self._socket = socket.socket(resolved.family)
        self._socket.setblocking(False)
        # Non-blocking: an unreachable host would hold up the loop for minutes.
        code = self._socket.connect_ex(resolved.address)
        if code not in (0, errno.EINPROGRESS):
            self._socket.close()
            on_end(None)
            return
        # A socket that connects becomes writable when the attempt ends, well or not; SO_ERROR says which.
        loop.write(self._socket.fileno(), self._done)
        self._timer: Timer = loop.later(_ATTEMPT_SECONDS, lambda: self._end(False))

    def _done(self) -> None:
        self._end(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)

    def _end(self, connected: bool) -> None:
        self._timer.cancel()
        self._loop.forget(self._socket.fileno())
        if not connected:
            self._socket.close()
        self._on_end(self._socket if connected else None)


def parse_address(control: str, *, heartbeat: float) -> Address:
    """Return the address of the control channel.

    Raises `ContractError` when the text names neither a path nor a port.

    >>> parse_address("unix:/tmp/job/control", heartbeat=5.0)
    UnixAddress(path='/tmp/job/control')
    >>> parse_address("tcp:algo-1:7590", heartbeat=5.0)
    TCPAddress(host='algo-1', port=7590, heartbeat=5.0)
    """
    kind, _, rest = control.partition(":")
    if kind == "unix" and rest:
        return UnixAddress(rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536:
        return TCPAddress(host.strip("[]"), int(port), heartbeat)
    raise ContractError(f"control channel {control!r} is neither 'unix:PATH' nor 'tcp:HOST:PORT'")
