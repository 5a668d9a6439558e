"""The connections of a server: who may hold how many, and for how long.

    accepted --> stranger --a request with a proof--> a connection of that caller

Connections beyond a limit cost whoever has them. Beyond `strangers` the oldest stranger goes. Beyond
`of_caller` the caller's oldest idle connection goes, and without an idle one the request is refused. The loop's thread
alone uses all of this.
"""

from __future__ import annotations

import fcntl
import resource
import socket
import struct
import termios
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from herringbone_contract.errors import InputError

_CONNECTION = "herringbone.connection"
# Files, databases and pipes that a server opens for other reasons than a connection.
_SPARE_DESCRIPTORS = 128
_MOST_TIMES = 8
# A signed request takes a few milliseconds from its connection to its proof, and more on a busy machine.
_PROOF_SECONDS = 0.05
_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a server's connections.

    `strangers` is the number of connections without a right request, `of_caller` that of one caller, `callers` that of
    all callers. A connection ends after `head_seconds` without a whole head of a request, and after `silence_seconds`
    in which its client takes nothing of an answer.
    """

    strangers: _Count = 256
    of_caller: _Count = 64
    callers: _Count = 256
    head_seconds: _Seconds = 10.0
    silence_seconds: _Seconds = 60.0

    @property
    def descriptors(self) -> int:
        """The descriptors of a server at its limits: an answer to a caller may have a file open."""
        return self.strangers + 2 * self.callers + _SPARE_DESCRIPTORS


def fitted(limits: Limits | None, descriptors: int) -> Limits:
    """Return the limits of a process that may open so many descriptors. Raises `InputError` for limits that do not fit.

    >>> fitted(None, 1024) == Limits(), fitted(None, 256).strangers
    (True, 42)

    Limits that nobody has chosen follow the number, up to 8 times those of 1,024 descriptors: strangers that find room
    cost nothing, and those that are ended come again.
    """
    if limits is not None:
        if limits.descriptors <= descriptors:
            return limits
        raise InputError(
            f"connections: {limits.strangers} strangers and {limits.callers} callers need {limits.descriptors} open "
            f"files, and this process may have {descriptors}: lower the numbers, or raise the limit with `ulimit -n`"
        )
    usual = Limits()
    part = (descriptors - _SPARE_DESCRIPTORS) / (usual.descriptors - _SPARE_DESCRIPTORS)
    part = min(_MOST_TIMES, int(part)) if part >= 1 else max(0, part)
    strangers, callers = (max(1, int(part * count)) for count in (usual.strangers, usual.callers))
    return Limits(strangers=strangers, callers=callers, of_caller=max(1, min(usual.of_caller, callers // 2)))


def open_files() -> int:
    """Return how many descriptors this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Connection:
    """One connection; `caller` is "" for a stranger.

    `is_idle` is False while a request is answered. `head_since` is when the client began to send the head of a request,
    or connected; None in a request, and between two of them, where the server's limit of idle connections counts.
    """

    def __init__(self, accepted: socket.socket, now: float) -> None:
        self._socket, self.since = accepted, now
        self.caller = ""
        self.is_idle = True
        self.head_since: float | None = now
        # Of the loop; there is none before the handshake of TLS.
        self.transport: Any = None
        self._unsent, self._unsent_since = 0, now

    @property
    def is_over(self) -> bool:
        return self._socket.fileno() < 0

    def end(self) -> None:
        """End the connection at once, whatever waits to be sent."""
        if self.transport is not None:
            self.transport.abort()
        elif not self.is_over:
            try:
                # The loop owns the socket: it reads the end, and closes it.
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the client was faster

    def is_overdue(self, now: float, limits: Limits) -> bool:
        """Report whether a client has sent no head of a request, or taken nothing of an answer, for too long."""
        if (unsent := self._bytes_unsent()) != self._unsent or not unsent:
            self._unsent, self._unsent_since = unsent, now
        if now - self._unsent_since > limits.silence_seconds:
            return True
        return self.head_since is not None and now - self.head_since > limits.head_seconds

    def _bytes_unsent(self) -> int:
        """Return how many bytes wait in the process, and in the kernel behind those; 0 if none wait in the process."""
        waiting = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if not waiting:
            return 0
        try:
            # The kernel's buffer has megabytes, so a slow client takes bytes for minutes before it takes one of ours.
            (queued,) = struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            queued = 0
        return waiting + int(queued)


class Room:
    """The connections of one server, within its limits.

    >>> room = Room(Limits(strangers=1))
    >>> with socket.socketpair()[0] as first, socket.socketpair()[0] as second:      # doctest: +SKIP
    ...     room.enter(first, 0.0), room.enter(second, 1.0)                          # which ends the first one
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Both in the order of their coming.
        self._strangers: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}
        self._by_descriptor: dict[int, Connection] = {}

    def enter(self, accepted: socket.socket, now: float) -> Connection:
        """Take a connection in, as a stranger's."""
        connection = Connection(accepted, now)
        self._strangers[connection] = None
        self._by_descriptor[accepted.fileno()] = connection
        if len(self._strangers) > self.limits.strangers:
            # The oldest one of all: a client whose proof is on the way is among the youngest.
            self._end(next(iter(self._strangers)))
        return connection

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is over."""
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)

    def find(self, descriptor: int) -> Connection | None:
        """Return the connection with a descriptor, None if it had to go meanwhile."""
        found = self._by_descriptor.pop(descriptor, None)
        return found if found in self._strangers else None

    def is_crowded(self, now: float) -> bool:
        """Report whether the next stranger would end one that had no time yet to show its proof."""
        return (
            len(self._strangers) >= self.limits.strangers and now - next(iter(self._strangers)).since < _PROOF_SECONDS
        )

    def admit(self, connection: Connection, caller: str) -> bool:
        """Make a connection a caller's. Return False if there is no room for it."""
        if connection.caller == caller:
            return True
        for most, of_all in ((self.limits.of_caller, False), (self.limits.callers, True)):
            group = [each for each in self._known if each is not connection and (of_all or each.caller == caller)]
            if len(group) >= most:
                idle = next((each for each in group if each.is_idle), None)
                if idle is None:
                    return False
                self._end(idle)
        connection.caller = caller
        self._strangers.pop(connection, None)
        self._known[connection] = None
        return True

    def sweep(self, now: float) -> None:
        """End connections whose clients are too slow, and forget those that have ended without a protocol.

        Of strangers at most an eighth at once: all of a crowd would come again in the same moment.
        """
        strangers = max(1, self.limits.strangers // 8)
        for connection in [*self._strangers, *self._known]:
            if connection.is_over:
                self.leave(connection)
            elif (connection.caller or strangers) and connection.is_overdue(now, self.limits):
                strangers -= not connection.caller
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        connection.end()
        self.leave(connection)


def admit(scope: Mapping[str, Any], caller: str) -> bool:
    """Note who has proved to be the caller of a request. Return False where there is no room for the connection."""
    found = scope.get(_CONNECTION)
    if found is None:
        # Without a server that counts, as in tests of an application.
        return True
    room, connection = found
    return bool(room.admit(connection, caller))


def noted(scope: Mapping[str, Any], room: Room, connection: Connection) -> dict[str, Any]:
    """Return the scope of a request, for `admit`."""
    return {**scope, _CONNECTION: (room, connection)}
