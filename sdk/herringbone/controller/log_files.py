"""Writes a host's output into its log file, each line behind the time of its arrival."""

from __future__ import annotations

import contextlib
import os
import sys
import time

# A longer line is broken here: output without newlines must not fill the memory.
MAX_LINE_BYTES = 16 << 20


def stamp(now: float) -> bytes:
    """Return the prefix of a line that arrived at `now`, in seconds since 1970.

    >>> stamp(0.25)
    b'1970-01-01T00:00:00.250000Z '
    """
    seconds, micros = divmod(int(now * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z ".encode()


def complain(text: object) -> None:
    """Write a line into the controller's own log, unless its disk is full."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class LogFile:
    """Writes complete lines; Python works once per chunk, not per line.

    >>> log = LogFile("algo-1.log")          # doctest: +SKIP
    >>> log.feed(b"[algo-1:0] loss 0.5\\n", now=time.time())    # doctest: +SKIP

    On a full disk lines are lost, and the job continues: `lost` counts the bytes. The line that was cut ends there, and
    the next one begins on a line of its own.
    """

    def __init__(self, path: str) -> None:
        # O_APPEND: the controllers of several attempts write the same file one after the other.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # The disk may have been full, or the machine have crashed, in the middle of an earlier attempt's last line.
        size = self.size
        self._cut = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        # Pieces of the last, incomplete line: joining them once is linear, appending to one string is not.
        self._rest: list[bytes] = []
        self._rest_size = 0
        self.lost = 0

    @property
    def size(self) -> int:
        """The size of the file in bytes, including what earlier attempts wrote."""
        return os.fstat(self._file).st_size

    def feed(self, chunk: bytes, now: float) -> None:
        cut = chunk.rfind(b"\n") + 1
        # Only complete lines are written, so a reader of the file never sees a line without its end.
        if cut:
            self._write(b"".join([*self._rest, chunk[:cut]]), now)
            self._rest, self._rest_size = [], 0
        if cut < len(chunk):
            self._rest.append(chunk[cut:])
            self._rest_size += len(chunk) - cut
            if self._rest_size > MAX_LINE_BYTES:
                self._flush(now)

    def say(self, text: str, now: float) -> None:
        """Write one line of the controller itself."""
        self._flush(now)
        self._write(f"{text}\n".encode(), now)

    def close(self, now: float) -> None:
        self._flush(now)
        os.close(self._file)

    def _flush(self, now: float) -> None:
        if self._rest:
            self._write(b"".join(self._rest) + b"\n", now)
            self._rest, self._rest_size = [], 0

    def _write(self, lines: bytes, now: float) -> None:
        mark = stamp(now)
        begin = b"\n" if self._cut else b""
        view = memoryview(begin + mark + lines[:-1].replace(b"\n", b"\n" + mark) + b"\n")
        while view:
            try:
                written = os.write(self._file, view)
            # A full disk, for example. The job must not fail for its log.
            except OSError:
                self.lost += len(view)
                return
            self._cut = view[written - 1] != ord("\n")
            view = view[written:]
