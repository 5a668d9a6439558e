"""The supervisor's own standard output: never blocks the loop, never loses a byte while somebody reads.

A reader that pauses (a full pipe behind `less`, a slow log driver) must not stop heartbeats and signals. So bytes that
cannot be written yet wait in a queue, and `full` makes the ranks' pipes wait as well:

    rank -> pipe -> [Pipe] -> [Output: queue] -> pipe or file -> reader
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque

from herringbone_entry.event_loop import Callback, Loop

_FULL_BYTES = 4 * 1024 * 1024
# A pipe that reports room takes this many bytes without blocking (POSIX: PIPE_BUF; Linux: 4096).
_SAFE_BYTES = min(select.PIPE_BUF, 4096)


class Output:
    """Queues bytes for one descriptor.

    >>> Output(Loop(), 1).write(b"")

    After the reader has gone, `write` drops its bytes, and the ranks continue as they would behind a closed terminal.
    """

    def __init__(self, loop: Loop, descriptor: int) -> None:
        self._loop = loop
        self._descriptor = descriptor
        # Views and not copies: a rest of a large write is cut off without moving its bytes.
        self._queue: deque[memoryview] = deque()
        # Pipes that stopped reading because the queue was full.
        self._drained: list[Callback] = []
        self._size = 0
        # Whether the loop watches the descriptor; it takes one callback per descriptor.
        self._watched = False
        # A regular file takes everything at once, and epoll refuses to watch one. The descriptor stays blocking: it is
        # shared with whoever started us, and O_NONBLOCK would change it for them, too.
        self._can_wait = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._gone = False

    @property
    def full(self) -> bool:
        """True if so much waits that producers must pause."""
        return self._size > _FULL_BYTES

    def write(self, data: bytes) -> None:
        """Queue bytes, and write as many as the descriptor takes now."""
        if not data or self._gone:
            return
        self._queue.append(memoryview(data))
        self._size += len(data)
        if not self._can_wait:
            self.flush()
        # While watched, earlier bytes wait; writing now would overtake them.
        elif not self._watched:
            self._write_some()

    def when_drained(self, callback: Callback) -> None:
        """Call back once, as soon as the queue is not full."""
        self._drained.append(callback)

    def flush(self) -> None:
        """Write everything that waits; blocks for as long as the reader takes."""
        while self._queue and not self._gone:
            self._write(self._queue[0])

    def _write_some(self) -> None:
        # Small pieces, with a look before each: a blocking descriptor takes only PIPE_BUF bytes for sure.
        while self._queue and not self._gone and self._has_room():
            self._write(self._queue[0][:_SAFE_BYTES])
        waiting = bool(self._queue) and not self._gone
        if waiting and not self._watched:
            self._loop.write(self._descriptor, self._write_some)
        elif not waiting and self._watched:
            self._loop.forget(self._descriptor)
        self._watched = waiting
        if self._drained and not self.full:
            # A callback may fill the queue and register itself again, so the list is replaced first.
            waiters, self._drained = self._drained, []
            for callback in waiters:
                callback()

    def _has_room(self) -> bool:
        return bool(select.select([], [self._descriptor], [], 0)[1])

    def _write(self, data: memoryview) -> None:
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            # The reader is gone (Python ignores SIGPIPE, so the write fails instead).
            self._gone = True
            self._queue.clear()
            self._size = 0
            return
        head = self._queue.popleft()
        # The kernel may take a part, for example when a signal interrupts the write.
        if written < len(head):
            self._queue.appendleft(head[written:])
        self._size -= written
