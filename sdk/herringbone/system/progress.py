"""Progress of a transfer or of other work: a bar or a place on a terminal, a few lines on a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from herringbone.system.sizes import shown_bytes

# A file that collects the output should stay short.
_LINE_SECONDS = 30.0


class Progress:
    """Reports progress on standard error, or on `stream`: a bar on a terminal, a few lines on a pipe.

    >>> progress = Progress()                                        # doctest: +SKIP
    >>> with progress.uploading("code", 30_000_000) as count:        # doctest: +SKIP
    ...     count(8_000_000)
    uploading code ━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 8.0/30.0 MB 0:00:04

    `clock` returns seconds. Several threads may call `count`, with a negative number for bytes that are sent again.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    def say(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(f"{text}\n")
        stream.flush()

    def uploading(self, subject: str, num_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context manager that yields `count`, which takes the bytes sent since its last call."""
        return self._transferring("uploading", subject, num_bytes)

    def downloading(self, subject: str, num_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context manager that yields `count`, which takes the bytes received since its last call."""
        return self._transferring("downloading", subject, num_bytes)

    @contextmanager
    def working(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show that something goes on while the body runs, and how long it took; yields a function for its place."""
        stream, begin = self._stream or sys.stderr, self._clock()
        reported_at = begin

        def told(place: str) -> str:
            return f"{title}, {self._clock() - begin:.0f} s: {place}"

        def say_seldom(place: str) -> None:
            nonlocal reported_at
            if self._clock() - reported_at >= _LINE_SECONDS:
                reported_at = self._clock()
                self.say(told(place))

        if stream.isatty():
            # Imported here: only a terminal draws.
            from rich.console import Console
            from rich.markup import escape

            with Console(file=stream).status(escape(title)) as status:
                yield lambda place: status.update(escape(told(place)))
        else:
            self.say(f"{title} ...")
            yield say_seldom
        self.say(f"{title}: {self._clock() - begin:.1f} s")

    @contextmanager
    def _transferring(self, verb: str, subject: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
        stream = self._stream or sys.stderr
        if stream.isatty():
            with _bar(stream, f"{verb} {subject}", num_bytes) as count:
                yield count
            return
        # Guards the two counters and the output: boto3 calls `count` from its transfer threads.
        lock = threading.Lock()
        transferred, reported_at = 0, self._clock()
        self.say(f"{verb} {shown_bytes(num_bytes)} of {subject}")

        def count_on_pipe(more_bytes: int) -> None:
            nonlocal transferred, reported_at
            with lock:
                transferred += more_bytes
                now = self._clock()
                if now - reported_at >= _LINE_SECONDS:
                    reported_at = now
                    self.say(f"{verb} {subject}: {shown_bytes(transferred)} of {shown_bytes(num_bytes)}")

        yield count_on_pipe


@contextmanager
def _bar(stream: TextIO, label: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Draw a bar on a terminal while the body runs; yields a function that counts bytes, for any thread."""
    # Imported here: only a terminal draws bars.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    # Without markup: a path may have brackets.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=stream), redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(label, total=num_bytes)
        yield lambda more_bytes: bar.advance(task, more_bytes)
