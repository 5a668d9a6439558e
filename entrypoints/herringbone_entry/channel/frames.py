"""Messages over a stream socket: JSON objects behind a four-byte length, with file descriptors when needed.

The control channel between hosts and the link between a rank and its supervisor both use these frames. Every rank
pays for this module's imports at its start, so there are few.
"""

from __future__ import annotations

import array
import errno
import json
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class Session(Protocol):
        """The keys of a connection between hosts, as the contract's `channel.session` has them."""

        def seal(self, body: bytes) -> bytes:
            """Return what goes over the wire for a body."""

        def open(self, frame: bytes) -> bytes:
            """Return the body of what came over the wire. Raises `SealError`."""


Message = dict[str, Any]

_LENGTH_BYTES = 4
# A rank's start message holds its whole environment, which the kernel limits to a few megabytes.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 65_536
# Standard output and error, with some room.
_MAX_DESCRIPTORS = 4
_CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class WireError(Exception):
    """The other side sent something that is not a message; the connection is useless from then on."""


class Wire:
    """One end of a connection.

    >>> left, right = socket.socketpair()
    >>> Wire(left).send({"kind": "alive"})
    >>> Wire(right).wait()
    {'kind': 'alive'}
    >>> left.close(), right.close()
    (None, None)

    `receive` never blocks once the socket is non-blocking; `wait` is for a side that has nothing else to do.
    `limit` (bytes) bounds a message, so that a stranger cannot fill our memory with a message that never ends.
    """

    def __init__(self, connection: socket.socket, *, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.connection = connection
        self.limit = limit
        # Descriptors that have arrived; whoever reads the messages closes them.
        self.descriptors: list[int] = []
        # Bytes of messages that nobody has taken yet.
        self._buffer = bytearray()
        # Only between hosts, and only after both have proved themselves.
        self._session: Session | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.connection.fileno()

    def send(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one message whole.

        Raises OSError when the other side is gone, or (non-blocking) so far behind that its buffer is full.
        """
        rest = self.begin(message, descriptors)
        # Even an empty send fails once the other side has gone, and it may have received all it needed.
        if rest:
            self.connection.sendall(rest)

    def begin(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> memoryview:
        """Send the descriptors and as much of one message as the socket takes; return the rest for `send_rest`.

        A start message may be larger than the socket's buffer, and its receiver may be slow. Raises OSError.
        """
        body = json.dumps(message).encode()
        if self._session is not None:
            body = self._session.seal(body)
        data = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        # The kernel attaches the descriptors to the first byte, so only this first part carries them.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        return data[self.connection.sendmsg([data], rights) :]

    def send_rest(self, rest: memoryview) -> memoryview:
        """Send as much of the rest of a message as the socket takes, and return what is left then. Raises OSError."""
        return rest[self.connection.send(rest) :]

    def receive(self, most: int | None = None) -> list[Message]:
        """Return the messages that are complete by now, at most `most`; the others wait for `complete`.

        Raises EOFError when the other side has closed, WireError when it sends something that is not a message.
        """
        try:
            data, rights, _, _ = self.connection.recvmsg(
                _CHUNK_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
            )
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            # The other side was killed with our messages unread: the kernel reports a reset in place of an end. Where
            # the link was cut it reports, after a while, that nothing was acknowledged.
            if not isinstance(error, ConnectionError) and error.errno not in _CUT:
                raise
            data, rights = b"", []
        if not data:
            raise EOFError
        for _, _, block in rights:
            received = array.array("i")
            # The kernel may cut the block short when there is no room for all descriptors.
            received.frombytes(block[: len(block) - len(block) % received.itemsize])
            self.descriptors.extend(received)
        self._buffer += data
        return self.complete(most)

    def complete(self, most: int | None = None) -> list[Message]:
        """Return messages that have arrived already, at most `most`, without reading the socket. Raises WireError."""
        messages: list[Message] = []
        while len(messages) != most and (message := self._next()) is not None:
            messages.append(message)
        return messages

    def wait(self) -> Message:
        """Block until one message has come, and return it."""
        while not (messages := self.complete(1) or self.receive(1)):
            pass
        return messages[0]

    def unread(self, messages: Sequence[Message]) -> bytes:
        """Return the bytes of these messages and of those that nobody has taken yet, for `put_back`."""
        bodies = [json.dumps(message).encode() for message in messages]
        return b"".join(len(body).to_bytes(_LENGTH_BYTES, "big") + body for body in bodies) + bytes(self._buffer)

    def put_back(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Take what `unread` returned in place of bytes that come from the socket, and descriptors that came along."""
        self._buffer[:0] = data
        self.descriptors.extend(descriptors)

    def trust(self, session: Session) -> None:
        """Lift the limit: the other side has proved who it is. All frames from now on carry MACs."""
        self.limit, self._session = MAX_MESSAGE_BYTES, session

    def close(self) -> None:
        """Close the socket; received descriptors stay open."""
        self.connection.close()

    def _next(self) -> Message | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        # Checked as soon as the length is known, before any of the body is kept for long.
        if length > self.limit:
            raise WireError(f"a message of {length} bytes; this connection's limit is {self.limit}")
        if len(self._buffer) < _LENGTH_BYTES + length:
            return None
        # A copy, because the buffer's own bytes are deleted next.
        body = bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
        del self._buffer[: _LENGTH_BYTES + length]
        if self._session is not None:
            body = self._opened(self._session, body)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            # Each level of a nested text is a call of the parser, and 2,000 levels fit into a short message.
            raise WireError(f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise WireError(f"not an object: {body[:40]!r}")
        return message

    @staticmethod
    def _opened(session: Session, frame: bytes) -> bytes:
        # Imported here: ranks have no session, and pay for each import.
        from herringbone_contract.channel.session import SealError

        try:
            return session.open(frame)
        except SealError as error:
            raise WireError(str(error)) from error
