"""What the user sees while something is uploaded or downloaded: a bar on a terminal, a few lines on a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from herringbone.sizes import shown_bytes

_BAR_CHARS = 30
# A bar may move often; a file that collects lines is to stay short.
_BAR_SECONDS, _LINE_SECONDS = 0.1, 30.0


class Progress:
    """Says what happens, on standard error unless `stream` is another.

    >>> progress = Progress()                                        # doctest: +SKIP
    >>> with progress.uploading("code", 30_000_000) as sent:         # doctest: +SKIP
    ...     sent(8_000_000)
    uploading code [########                      ] 8.0 MB of 30.0 MB

    `clock` gives seconds. `sent` may be called by several threads, with a negative number for what is sent again.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def say(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(f"{text}\n")
        stream.flush()

    def uploading(self, what: str, num_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Give what takes the number of bytes that have been sent since it was last told."""
        return self._moving("uploading", what, num_bytes)

    def downloading(self, what: str, num_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Give what takes the number of bytes that have come since it was last told."""
        return self._moving("downloading", what, num_bytes)

    @contextmanager
    def _moving(self, doing: str, what: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
        stream = self._stream or sys.stderr
        on_terminal = stream.isatty()
        every = _BAR_SECONDS if on_terminal else _LINE_SECONDS
        lock = threading.Lock()
        moved, told = 0, self._clock()
        if not on_terminal:
            self.say(f"{doing} {shown_bytes(num_bytes)} of {what}")

        def count(more: int) -> None:
            nonlocal moved, told
            with lock:
                moved += more
                now = self._clock()
                if now - told < every:
                    return
                told = now
                if on_terminal:
                    _draw(stream, f"{doing} {what}", moved, num_bytes)
                else:
                    self.say(f"{doing} {what}: {shown_bytes(moved)} of {shown_bytes(num_bytes)}")

        try:
            if on_terminal:
                _draw(stream, f"{doing} {what}", 0, num_bytes)
            yield count
            if on_terminal:
                _draw(stream, f"{doing} {what}", moved, num_bytes)
        finally:
            if on_terminal:
                stream.write("\n")
                stream.flush()


def _draw(stream: TextIO, doing: str, moved: int, num_bytes: int) -> None:
    share = min(1.0, moved / num_bytes) if num_bytes else 1.0
    bar = "#" * int(share * _BAR_CHARS)
    stream.write(f"\r\x1b[K{doing} [{bar:<{_BAR_CHARS}}] {shown_bytes(moved)} of {shown_bytes(num_bytes)}")
    stream.flush()
