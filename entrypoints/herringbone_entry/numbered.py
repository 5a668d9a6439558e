"""`python -m herringbone_entry.numbered FILE`: number the lines of standard input, print them, and keep a copy.

    supervisor --> FIFO --> this process --> standard output  `17 [algo-1:0] text`, which kubelets rotate at 10 MiB
                                         --> FILE             `2026-11-30T17:00:00.123456Z 17 [algo-1:0] text`

The numbers show a reader of rotated output which lines it lacks, and FILE has them. Line N of FILE has the number N.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

# Container runtimes cut lines at 16 KiB, and old kubelets print a time stamp at each cut. Longer lines become pieces of
# this size, each with a number of its own: a `+` behind the number says that the next one continues the line.
PIECE_BYTES = 15_000
# The copy ends at this size, so that a script that prints without end cannot fill the volume.
_COPY_BYTES = 1 << 30
_READ_BYTES = 1 << 16


class Numbering:
    """Turns chunks of a stream into numbered lines.

    >>> numbering = Numbering()
    >>> list(numbering.feed(b"a\\nb")), list(numbering.close())
    ([b'1 a\\n'], [b'2 b\\n'])
    """

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._count = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield from self._numbered(line)
        # A line without an end must not fill the memory.
        while len(self._rest) > self._piece_bytes:
            yield self._next(b"+", self._rest[: self._piece_bytes])
            self._rest = self._rest[self._piece_bytes :]

    def note(self, text: str) -> bytes:
        """Return a line of this process itself."""
        return self._next(b" ", text.encode("utf-8", "replace"))

    def close(self) -> Iterator[bytes]:
        """Yield the last line, which has no newline."""
        if self._rest:
            yield from self._numbered(self._rest)

    def _numbered(self, line: bytes) -> Iterator[bytes]:
        while len(line) > self._piece_bytes:
            yield self._next(b"+", line[: self._piece_bytes])
            line = line[self._piece_bytes :]
        yield self._next(b" ", line)

    def _next(self, mark: bytes, text: bytes) -> bytes:
        self._count += 1
        return b"%d%s%s\n" % (self._count, mark, text)


class Copy:
    """The file of a log; at its limit, or after an error, it gets no more lines."""

    def __init__(self, path: Path, limit: int = _COPY_BYTES) -> None:
        self._path, self._limit, self._left = path, limit, limit
        self._file: int | None = None
        self._why = ""
        with self._kept():
            path.parent.mkdir(parents=True, exist_ok=True)
            # The folder is the script's: no link of its making may lead elsewhere.
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, lines: list[bytes]) -> None:
        """Add lines, with the time at which they came."""
        if self._file is None or not lines:
            return
        stamp = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ} ".encode()
        data = b"".join(stamp + line for line in lines)
        self._left -= len(data)
        with self._kept():
            if self._left < 0:
                raise OSError(0, f"it has reached its limit of {self._limit} bytes")
            _write_all(self._file, data)

    def end(self) -> str:
        """Return why the copy has ended since the last call; "" otherwise."""
        why, self._why = self._why, ""
        return (
            f"herringbone: this log's copy {self._path} ends here: {why}; what rotation removes is lost" if why else ""
        )

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._why = error.strerror or str(error)
            if self._file is not None:
                # An error of a delayed write; the copy has ended in any case.
                with contextlib.suppress(OSError):
                    os.close(self._file)
            self._file = None


def pass_on(read: int, write: int, copy: Copy, numbering: Numbering) -> None:
    """Number the lines of one descriptor, and write them to another one and to the copy, until the end of the input."""

    def emit(lines: list[bytes]) -> None:
        _write_all(write, b"".join(lines))
        copy.write(lines)
        if why := copy.end():
            _write_all(write, numbering.note(why))

    while chunk := os.read(read, _READ_BYTES):
        emit(list(numbering.feed(chunk)))
    emit(list(numbering.close()))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    pass_on(0, 1, Copy(Path(sys.argv[1])), Numbering())
