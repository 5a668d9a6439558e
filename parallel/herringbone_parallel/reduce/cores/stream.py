"""Messages over one non-blocking socket, both ways, without a copy of what they carry."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from herringbone_parallel.reduce.cores.base import Limit, LinkCount, LinkSpec, Role
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.cores.ring import Place

# How many messages one turn of the loop takes from one connection before the others have theirs.
_TURN = 16
_CHUNKS = (Kind.PUSH, Kind.SUM)


class Stream:
    """The messages of one connection.

    `place` tells where the bytes behind a header go, `take` gets the header once they are there. What is queued by
    `send` must not change until it is on its way. Raises `OSError` when the connection is gone.
    """

    def __init__(
        self,
        spec: LinkSpec,
        limit: Limit,
        place: Callable[[Stream, Header], memoryview],
        take: Callable[[Stream, Header, memoryview], None],
    ) -> None:
        family = socket.AF_UNIX if spec.role is Role.LOCAL else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM, fileno=spec.descriptor)
        self.socket.setblocking(False)
        self.spec = spec
        self.heard = self.spoke = time.monotonic()
        # Of this link's chunks: pushed by this side, and back as sums.
        self.pushed, self.returned = Place(limit), Place(limit)
        # Once the other side has left: how many buffers it took part in.
        self.left: int | None = None
        self.answered = False
        self._place, self._take = place, take
        self._queue: deque[tuple[memoryview, bool]] = deque()  # with whether it begins a message
        self._head = memoryview(bytearray(LAYOUT.size))
        self._header: Header | None = None
        self._target = self._head
        self._body = self._head[:0]
        self._sent = [0, 0]
        self._received = [0, 0]

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._queue)

    def send(self, header: Header, body: memoryview | bytes = b"") -> None:
        self._sent[1] += header.kind in _CHUNKS
        self._queue.append((memoryview(header.pack()), True))
        if len(body):
            self._queue.append((memoryview(body).cast("B"), False))

    def drop(self) -> None:
        """Forget what is queued, but for the message that is half on its way."""
        rest = list(self._queue)
        begun = 1 if rest and (not rest[0][1] or len(rest[0][0]) < LAYOUT.size) else 0
        if begun and len(rest) > 1 and not rest[1][1]:
            begun = 2
        self._queue = deque(rest[:begun])

    def flush(self) -> None:
        """Send what the system takes now."""
        while self._queue:
            try:
                sent = self.socket.sendmsg([part for part, _ in islice(self._queue, 16)])
            except BlockingIOError:
                return
            self.spoke = time.monotonic()
            self._sent[0] += sent
            while sent and sent >= len(self._queue[0][0]):
                sent -= len(self._queue.popleft()[0])
            if sent:
                self._queue[0] = (self._queue[0][0][sent:], self._queue[0][1])

    def receive(self) -> None:
        """Take what has come, up to one turn's worth; an orderly end of the connection is a `ConnectionError` too."""
        messages = 0
        while messages < _TURN:
            if self._target:
                try:
                    received = self.socket.recv_into(self._target)
                except BlockingIOError:
                    return
                if not received:
                    raise ConnectionError("the connection was closed")
                self.heard = time.monotonic()
                self._received[0] += received
                self._target = self._target[received:]
            if not self._target:
                messages += self._advance()

    def _advance(self) -> bool:
        """A header or a body is complete; return whether that completes a message."""
        if self._header is None:
            self._header = Header.unpack(bytes(self._head))
            self._body = self._place(self, self._header)[: self._header.length]
            self._target = self._body
            if self._body:
                return False
        header, self._header, self._target = self._header, None, self._head
        self._received[1] += header.kind in _CHUNKS
        self._take(self, header, self._body)
        return True

    def finish(self) -> bool:
        """Send the rest, then read until the other side has closed too; return whether nothing is left to do.

        A connection closed with bytes unread is reset, and what was sent last is lost with it.
        """
        try:
            self.flush()
            if self._queue:
                return False
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                continue
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def count(self) -> LinkCount:
        return LinkCount(self.spec.label, self._sent[0], self._received[0], self._sent[1], self._received[1])

    def close(self) -> None:
        self.socket.close()
