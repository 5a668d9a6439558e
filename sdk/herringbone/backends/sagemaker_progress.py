"""What the user sees while something is uploaded: a bar on a terminal, a few lines on a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    @contextmanager
    def uploading(self, what: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
        """Yield what takes the number of bytes that have been sent since it was last told."""
        stream = self._stream or sys.stderr
        on_terminal = stream.isatty()
        every = _BAR_SECONDS if on_terminal else _LINE_SECONDS
        lock = threading.Lock()
        sent, told = 0, self._clock()
        if not on_terminal:
            self.say(f"uploading {shown_bytes(num_bytes)} of {what}")

        def count(more: int) -> None:
            nonlocal sent, told
            with lock:
                sent += more
                now = self._clock()
                if now - told < every:
                    return
                told = now
                if on_terminal:
                    self._draw(stream, what, sent, num_bytes)
                else:
                    self.say(f"uploading {what}: {shown_bytes(sent)} of {shown_bytes(num_bytes)}")

        try:
            if on_terminal:
                self._draw(stream, what, 0, num_bytes)
            yield count
            if on_terminal:
                self._draw(stream, what, sent, num_bytes)
        finally:
            if on_terminal:
                stream.write("\n")
                stream.flush()

    def _draw(self, stream: TextIO, what: str, sent: int, num_bytes: int) -> None:
        share = min(1.0, sent / num_bytes) if num_bytes else 1.0
        bar = "#" * int(share * _BAR_CHARS)
        stream.write(f"\r\x1b[Kuploading {what} [{bar:<{_BAR_CHARS}}] {shown_bytes(sent)} of {shown_bytes(num_bytes)}")
        stream.flush()
