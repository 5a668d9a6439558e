"""Carry one stream of a process to the supervisor's output, through a pipe."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
import time

from herringbone_entry.event_loop import Callback, Loop, Timer
from herringbone_entry.ranks.lines import BAR_INTERVAL_SECONDS, LineStream
from herringbone_entry.ranks.output import Output

_READ_BYTES = 262_144
# A large pipe lets a rank continue to print while the loop serves others.
_PIPE_BYTES = 1_048_576


class Pipe:
    """Reads one stream until its end, prefixes its lines and passes them on.

    `writer` is the descriptor for the process; the owner closes it once the process has its copy. `on_end` is called
    once, when the last process that holds the writing end is gone. `ends` are given when the pipe exists already.
    """

    def __init__(
        self,
        loop: Loop,
        output: Output,
        stream: LineStream,
        on_end: Callback,
        ends: tuple[int, int] | None = None,
    ) -> None:
        self._loop, self._output, self._stream, self._on_end = loop, output, stream, on_end
        self._reader, self.writer = os.pipe() if ends is None else ends
        # The loop's thread reads, and must never wait for one rank.
        os.set_blocking(self._reader, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # The kernel refuses when this user's pipes hold too much memory; the default of 64 KiB works as well.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Runs only while a progress bar is open; at most one per pipe.
        self._timer: Timer | None = None
        self._muted = False
        self.ended = False
        # Monotonic seconds; 0.0 before the first byte.
        self.read_at = 0.0
        loop.read(self._reader, self._read)

    def close_writer(self) -> None:
        """Close our copy of the writing end; with it open, the pipe would never end."""
        os.close(self.writer)

    def mute(self) -> None:
        """Print nothing more, but continue to read: a full pipe would block the writer."""
        self._muted = True

    def drain(self) -> None:
        """Read the bytes in the pipe by now, and no more: a process that the rank left may write without end."""
        waiting = 0 if self.ended else self._waiting()
        # Count first: reading until the pipe is empty may never end while a writer lives.
        while waiting > 0:
            waiting -= self._read_some()
        # One more read: only a read of no bytes reveals the end of a pipe.
        self._read_some()

    def finish(self) -> None:
        """Wait no longer for the end: another process holds the pipe open."""
        if self.ended:
            return
        self.drain()
        self._end()

    def _read(self) -> None:
        if self._output.full:
            # Backpressure: the pipe fills up, and then the rank's own prints block until the reader continues.
            self._loop.forget(self._reader)
            self._output.when_drained(self._resume)
            return
        self._read_some()

    def _resume(self) -> None:
        if not self.ended:
            self._loop.read(self._reader, self._read)

    def _waiting(self) -> int:
        """Return the number of bytes in the pipe."""
        count = array.array("i", [0])
        fcntl.ioctl(self._reader, termios.FIONREAD, count)
        return count[0]

    def _read_some(self) -> int:
        """Read once and return the number of bytes; 0 at the end of the pipe, or when it is empty."""
        if self.ended:
            return 0
        try:
            chunk = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not chunk:
            self._end()
            return 0
        self.read_at = time.monotonic()
        self._show(self._stream.feed(chunk, self.read_at))
        # The last state of a progress bar may never be followed by another byte, so a timer shows it.
        if self._stream.bar and self._timer is None:
            self._timer = self._loop.later(BAR_INTERVAL_SECONDS, self._tick)
        return len(chunk)

    def _tick(self) -> None:
        self._timer = None
        if not self.ended:
            self._show(self._stream.tick(time.monotonic()))
            if self._stream.bar:
                self._timer = self._loop.later(BAR_INTERVAL_SECONDS, self._tick)

    def _show(self, lines: bytes) -> None:
        if not self._muted:
            self._output.write(lines)

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        # Forget first: the number of a closed descriptor may be given to the next file.
        self._loop.forget(self._reader)
        os.close(self._reader)
        # A last line without a newline is still in the stream.
        self._show(self._stream.close())
        self._on_end()
