"""Show on standard error that something is measured: one line that is redrawn on a terminal, two lines on a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_COLUMNS = 100


class Progress:
    """Writes what is measured, for how long, and where it is.

    >>> with Progress(sys.stderr).of("measuring one step", "train.py") as show: show("forward")      # doctest: +SKIP
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @contextmanager
    def of(self, what: str, name: str) -> Iterator[Callable[[str], None]]:
        """Show that something is measured while the body runs; the body gets a function for the place it is at."""
        stream, begin = self._stream, time.monotonic()
        if stream is None:
            yield lambda _: None
            return
        title = f"{what} of {name}" if name else what
        drawn = stream.isatty()
        stream.write(title if drawn else f"{title} ...\n")
        stream.flush()

        def show(place: str) -> None:
            if drawn:
                line = f"{title}, {time.monotonic() - begin:.0f} s: {place}"
                stream.write(f"\r{line[:_COLUMNS]:<{_COLUMNS}}")
                stream.flush()

        try:
            yield show
        except BaseException:
            if drawn:
                stream.write("\n")
            raise
        line = f"{title}: {time.monotonic() - begin:.1f} s"
        stream.write(f"\r{line:<{_COLUMNS}}\n" if drawn else f"{line}\n")
        stream.flush()
