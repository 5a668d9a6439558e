"""Sends and receives messages over one non-blocking socket, without copying their bodies."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import Limit, LinkCount, LinkSpec, Role
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.cores.ring import RingCursor

# One turn of the loop takes at most so many messages from a connection, so that a fast one does not starve the others.
_MESSAGES_PER_TURN = 16
_CHUNKS = (Kind.PUSH, Kind.SUM)


class Stream:
    """The messages of one connection. Only the I/O thread uses it.

    `destination` returns the memory for the body behind a header; `deliver` gets the header once the body has arrived
    there. A body given to `send` must not change until it has been sent. Raises `OSError` when the connection is lost.
    """

    def __init__(
        self,
        spec: LinkSpec,
        limit: Limit,
        destination: Callable[[Stream, Header], memoryview],
        deliver: Callable[[Stream, Header, memoryview], None],
    ) -> None:
        family = socket.AF_UNIX if spec.role is Role.LOCAL else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM, fileno=spec.descriptor)
        self.socket.setblocking(False)
        self.spec = spec
        self.received_s = self.sent_s = time.monotonic()
        # The chunks that this side has pushed, and those whose sums have returned: the difference is the window in use.
        self.pushed, self.returned = RingCursor(limit), RingCursor(limit)
        # After the other side's LEAVE: the number of buffers in which it took part.
        self.left_after: int | None = None
        # True after the other side has answered this side's LEAVE with LEFT.
        self.acknowledged = False
        self._destination, self._deliver = destination, deliver
        # Each part with a flag: True for a header, which begins a message.
        self._queue: deque[tuple[memoryview, bool]] = deque()
        # The receiving state: `_header` is None while a header is read into `_head`; `_target` is the memory that is
        # still missing, of the header or of the body.
        self._head = memoryview(bytearray(LAYOUT.size))
        self._header: Header | None = None
        self._target = self._head
        self._body = self._head[:0]
        # [bytes, chunks]
        self._sent = [0, 0]
        self._received = [0, 0]

    @property
    def pending(self) -> bool:
        """True if messages wait to be sent."""
        return bool(self._queue)

    def send(self, header: Header, body: memoryview | bytes = b"") -> None:
        """Queue a message; `flush` sends it."""
        self._sent[1] += header.kind in _CHUNKS
        self._queue.append((memoryview(header.pack()), True))
        if len(body):
            self._queue.append((memoryview(body).cast("B"), False))

    def drop(self) -> None:
        """Discard the queued messages, except for one that is partly sent: the other side could not parse the next."""
        parts = list(self._queue)
        partly_sent = 1 if parts and (not parts[0][1] or len(parts[0][0]) < LAYOUT.size) else 0
        # A header that is partly sent takes its body along.
        if partly_sent and len(parts) > 1 and not parts[1][1]:
            partly_sent = 2
        self._queue = deque(parts[:partly_sent])

    def flush(self) -> None:
        """Send as many queued bytes as the system takes now."""
        while self._queue:
            try:
                # One system call for several headers and bodies.
                sent = self.socket.sendmsg([part for part, _ in islice(self._queue, 16)])
            except BlockingIOError:
                return
            self.sent_s = time.monotonic()
            self._sent[0] += sent
            while sent and sent >= len(self._queue[0][0]):
                sent -= len(self._queue.popleft()[0])
            if sent:
                self._queue[0] = (self._queue[0][0][sent:], self._queue[0][1])

    def receive(self) -> None:
        """Receive up to one turn's messages. Raises `ConnectionError` also when the other side has closed in order."""
        messages = 0
        while messages < _MESSAGES_PER_TURN:
            if self._target:
                try:
                    received = self.socket.recv_into(self._target)
                except BlockingIOError:
                    return
                if not received:
                    raise ConnectionError("the connection was closed")
                self.received_s = time.monotonic()
                self._received[0] += received
                self._target = self._target[received:]
            if not self._target:
                messages += self._advance()

    def _advance(self) -> bool:
        """Handle a complete header or body; return True if that completes a message."""
        if self._header is None:
            self._header = Header.unpack(bytes(self._head))
            # Before any other use: nothing in it can be trusted until here.
            if not self._header.is_well_formed(local=self.spec.role is Role.LOCAL):
                raise ParallelError(
                    f"{self.spec.label} sent a message of kind {self._header.kind} and {self._header.length} bytes"
                    f" ({self._header.describe()}): the connection is out of step"
                )
            # The body goes straight to its final memory: a slot of a server, or the buffer of the user.
            self._body = self._destination(self, self._header)[: self._header.length]
            self._target = self._body
            if self._body:
                return False
        header, self._header, self._target = self._header, None, self._head
        self._received[1] += header.kind in _CHUNKS
        self._deliver(self, header, self._body)
        return True

    def finish(self) -> bool:
        """Send the rest, then read until the other side has closed, too; return True if nothing is left to do.

        If a process closes a connection with unread bytes, the kernel resets it, and the last sent bytes are lost.
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
        """Return the traffic so far; any thread may call it."""
        return LinkCount(self.spec.label, self._sent[0], self._received[0], self._sent[1], self._received[1])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
