"""A real pipe from a process to the supervisor's output."""

from __future__ import annotations

import os

from herringbone_entry.event_loop import Loop
from herringbone_entry.ranks.lines import LineStream, Tail
from herringbone_entry.ranks.pipe import Pipe


class Refilled:
    """An output during whose writes another process always fills the pipe again."""

    full = False

    def __init__(self) -> None:
        self.shown: list[bytes] = []

    def write(self, lines: bytes) -> None:
        if lines:
            self.shown.append(lines)
            assert len(self.shown) < 10, "it reads for ever"
            os.write(self.pipe.writer, b"more\n")


def test_draining_ends_although_the_writer_does_not() -> None:
    # A rank had failed, and its child continued to write; the supervisor read until the pipe was empty: never.
    output = Refilled()
    output.pipe = Pipe(Loop(), output, LineStream(b"", Tail()), lambda: None)
    os.write(output.pipe.writer, b"last words\n")
    output.pipe.drain()
    assert output.shown == [b"last words\n", b"more\n"]
    output.pipe.finish()
    output.pipe.close_writer()
