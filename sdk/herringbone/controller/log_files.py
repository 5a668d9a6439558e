"""A host's output, chunk by chunk, into its log file, each line behind the time it came at."""

from __future__ import annotations

import os
import time

# A longer line is broken here: something must bound the memory that output without newlines takes.
MAX_LINE_BYTES = 16 << 20


def stamp(now: float) -> bytes:
    """Return what stands before a line that came at `now`, seconds since 1970.

    >>> stamp(0.25)
    b'1970-01-01T00:00:00.250000Z '
    """
    seconds, micros = divmod(int(now * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z ".encode()


class LogFile:
    """Files whole lines; a line costs no Python, only a chunk does.

    >>> log = LogFile("algo-1.log")          # doctest: +SKIP
    >>> log.feed(b"[algo-1:0] loss 0.5\\n", now=time.time())    # doctest: +SKIP

    A full disk loses lines, never the job: `lost` counts the bytes.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._rest: list[bytes] = []
        self._rest_size = 0
        self.lost = 0

    @property
    def size(self) -> int:
        """Bytes filed so far, by whom ever."""
        return os.fstat(self._file).st_size

    def feed(self, chunk: bytes, now: float) -> None:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            self._write(b"".join([*self._rest, chunk[:cut]]), now)
            self._rest, self._rest_size = [], 0
        if cut < len(chunk):
            self._rest.append(chunk[cut:])
            self._rest_size += len(chunk) - cut
            if self._rest_size > MAX_LINE_BYTES:
                self._flush(now)

    def say(self, text: str, now: float) -> None:
        """File a line of the controller's own."""
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
        view = memoryview(mark + lines[:-1].replace(b"\n", b"\n" + mark) + b"\n")
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError:
                self.lost += len(view)
                return
