"""Where the control channel lies: a socket of this machine, or a port of the first host's.

unix:PATH        hosts are processes of one machine: the file is there once the first host listens
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
from herringbone_entry.channel.listener import listen
from herringbone_entry.supervisor.event_loop import Loop

# A first packet that nobody answers, to a host that is not up yet, would be sent again after 1, 3 and 7 seconds only.
_ATTEMPT_SECONDS = 1.0
_MISSED_PROBES = 3
_SEND_BYTES = 1 << 20


OnEnd = Callable[[socket.socket | None], None]


class Address(Protocol):
    """How the first host listens and another one connects."""

    def listen(self, backlog: int) -> socket.socket:
        """Return a listening, non-blocking socket. Raises `LaunchError`."""

    def connect(self, loop: Loop, on_end: OnEnd) -> None:
        """Try once; `on_end` gets the connection, or None when nobody listens yet.

        Raises `ConnectionRefusedError` when somebody did, and nobody does any more.
        """

    def set_up(self, connection: socket.socket) -> None:
        """Prepare a connection for small messages between hosts that may vanish."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def listen(self, backlog: int) -> socket.socket:
        try:
            return listen(self.path, backlog)
        except OSError as error:
            raise LaunchError(f"control channel: cannot listen at {self.path}: {error}") from error

    def connect(self, loop: Loop, on_end: OnEnd) -> None:  # noqa: ARG002 - it is known at once
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self.path)
        except (FileNotFoundError, BlockingIOError):
            # No door yet, or a crowd before it.
            connection.close()
            on_end(None)
        except OSError as error:
            # The socket's file outlives the one who listened (and is never there before; see `listen`).
            connection.close()
            raise ConnectionRefusedError(f"{self.path}: {error}") from error
        else:
            on_end(connection)

    def set_up(self, connection: socket.socket) -> None:
        connection.setblocking(False)


@dataclass(frozen=True, slots=True)
class TCPAddress:
    """`heartbeat` (seconds): the kernel gives up a machine that has answered nothing for three of them.

    A machine can vanish before it was told to show signs of life, and then nothing else would tell.
    """

    host: str
    port: int
    heartbeat: float

    def listen(self, backlog: int) -> socket.socket:
        try:
            if socket.has_dualstack_ipv6():
                both = socket.AF_INET6
                listener = socket.create_server(("", self.port), family=both, backlog=backlog, dualstack_ipv6=True)
            else:
                listener = socket.create_server(("", self.port), backlog=backlog)
        except OSError as error:
            raise LaunchError(f"control channel: cannot listen at port {self.port} of this host: {error}") from error
        listener.setblocking(False)
        return listener

    def connect(self, loop: Loop, on_end: OnEnd) -> None:
        """Refused, unreachable and unknown all mean "not yet": only a connection can tell that there was somebody."""

        def reach(target: Target | None) -> None:
            if target is None:
                on_end(None)
            else:
                _Attempt(target, loop, on_end)

        Question(self.host, self.port, loop, reach)

    def set_up(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What waits for a host that is busy must fit in here; the system's own choice may be 16 KiB.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, round(self.heartbeat))
        # macOS names the first one TCP_KEEPALIVE, and has no last one.
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
class Target:
    """What a name stands for."""

    family: int
    address: tuple[object, ...]


class Question:
    """Ask for a name's address in a thread: a name server may take seconds to say that it knows none."""

    def __init__(self, host: str, port: int, loop: Loop, on_answer: Callable[[Target | None], None]) -> None:
        self._answer: Target | None = None
        ours, theirs = socket.socketpair()

        def ask() -> None:
            try:
                family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                self._answer = Target(family, address)
            except (OSError, UnicodeError):
                pass
            theirs.close()

        def take() -> None:
            loop.forget(ours.fileno())
            ours.close()
            on_answer(self._answer)

        loop.read(ours.fileno(), take)
        threading.Thread(target=ask, daemon=True).start()


class _Attempt:
    """One connection attempt; ends with a connection or with None."""

    def __init__(self, target: Target, loop: Loop, on_end: OnEnd) -> None:
        self._loop, self._on_end = loop, on_end
        self._socket = socket.socket(target.family)
        self._socket.setblocking(False)
        code = self._socket.connect_ex(target.address)
        if code not in (0, errno.EINPROGRESS):
            self._socket.close()
            on_end(None)
            return
        loop.write(self._socket.fileno(), self._done)
        self._timer = loop.later(_ATTEMPT_SECONDS, lambda: self._end(False))

    def _done(self) -> None:
        self._end(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)

    def _end(self, connected: bool) -> None:
        self._timer.cancel()
        self._loop.forget(self._socket.fileno())
        if not connected:
            self._socket.close()
        self._on_end(self._socket if connected else None)


def parse_address(control: str, *, heartbeat: float) -> Address:
    """Return where the control channel lies.

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
    if kind == "tcp" and host and port.isdigit() and 0 < int(port) < 65_536:
        return TCPAddress(host.strip("[]"), int(port), heartbeat)
    raise ContractError(f"control channel {control!r} is neither 'unix:PATH' nor 'tcp:HOST:PORT'")
