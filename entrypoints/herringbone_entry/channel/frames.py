"""Messages over a stream socket: JSON objects behind a four-byte length, with file descriptors when needed.

Both the control channel between hosts and the link between a rank and its supervisor speak this. A rank pays for
these imports at each start, so there are few.
"""

from __future__ import annotations

import array
import json
import socket
from typing import Any

Message = dict[str, Any]

_LENGTH_BYTES = 4
# A rank's orders hold its whole environment, which the kernel limits to a few megabytes.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 65_536
_MAX_DESCRIPTORS = 4


class WireError(Exception):
    """The other side said something that is not a message; the link is of no more use."""


class Wire:
    """One end of a link.

    >>> left, right = socket.socketpair()
    >>> Wire(left).send({"kind": "alive"})
    >>> Wire(right).wait()
    {'kind': 'alive'}
    >>> left.close(), right.close()
    (None, None)

    `receive` never blocks once the socket is non-blocking; `wait` is for a side that has nothing else to do.
    `limit` (bytes) bounds a message, so that a stranger cannot make us hold what it never finishes sending.
    """

    def __init__(self, connection: socket.socket, *, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.connection = connection
        self.limit = limit
        self.descriptors: list[int] = []
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message whole.

        Raises OSError when the other side is gone, or (non-blocking) so far behind that its buffer is full.
        """
        rest = self.begin(message, descriptors)
        # Even an empty send fails once the other side has gone, and it may have all it needed.
        if rest:
            self.connection.sendall(rest)

    def begin(self, message: Message, descriptors: tuple[int, ...] = ()) -> memoryview:
        """Send the descriptors and as much of one message as goes at once; return what is left for `go_on`.

        For a message that may be larger than what the socket takes, to a side that may be slow. Raises OSError.
        """
        body = json.dumps(message).encode()
        data = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        return data[self.connection.sendmsg([data], rights) :]

    def go_on(self, rest: memoryview) -> memoryview:
        """Send as much as goes at once of what is left of a message, and return what is then left. Raises OSError."""
        return rest[self.connection.send(rest) :]

    def receive(self) -> list[Message]:
        """Return the messages that are complete by now.

        Raises EOFError when the other side has closed, WireError when it talks nonsense.
        """
        try:
            data, rights, _, _ = self.connection.recvmsg(
                _CHUNK_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
            )
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError:
            data, rights = b"", []
        if not data:
            raise EOFError
        for _, _, block in rights:
            received = array.array("i")
            received.frombytes(block[: len(block) - len(block) % received.itemsize])
            self.descriptors.extend(received)
        self._buffer += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def wait(self) -> Message:
        """Block until one message is there; for a side that expects exactly one."""
        while True:
            messages = self.receive()
            if messages:
                return messages[0]

    def trust(self) -> None:
        """Lift the limit: the other side has proved who it is."""
        self.limit = MAX_MESSAGE_BYTES

    def close(self) -> None:
        self.connection.close()

    def _next(self) -> Message | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if length > self.limit:
            raise WireError(f"a message of {length} bytes; the limit here is {self.limit}")
        if len(self._buffer) < _LENGTH_BYTES + length:
            return None
        body = bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + length])
        del self._buffer[: _LENGTH_BYTES + length]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise WireError(f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise WireError(f"not an object: {body[:40]!r}")
        return message
