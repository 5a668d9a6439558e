"""A program elsewhere, joined with this process's terminal, its standard input and output, or a socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from threading import Thread
from typing import Protocol

STDOUT, STDERR = 1, 2
_BYTES = 65_536


class Program(Protocol):
    """The streams of a program that runs elsewhere. One thread reads `pieces`, another one writes."""

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the output, STDOUT or STDERR and bytes, until the program ends."""

    def write(self, data: bytes) -> None:
        """Send input. Raises `OSError` or `HerringboneError` when the program is gone."""

    def end_input(self) -> None:
        """Have the program read the end of its input."""

    def resize(self, columns: int, lines: int) -> None:
        """Set the size of the program's terminal."""

    def close(self) -> None:
        """Close the connection."""


def attach(program: Program, *, terminal: bool) -> None:
    """Join a program with this process's standard input and output until it ends.

    With `terminal` both sides have one: keys go on as they are, and the size follows this window's.
    """
    with _raw() if terminal else contextlib.nullcontext():
        if terminal:
            _resize(program)
            signal.signal(signal.SIGWINCH, lambda *_: _resize(program))
        Thread(target=_send_input, args=(program,), daemon=True).start()
        for kind, piece in program.pieces():
            _write(2 if kind == STDERR else 1, piece)


def joined(program: Program) -> socket.socket:
    """Return a socket with the standard output of a program without a terminal, and its standard input."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with contextlib.suppress(Exception):
            while chunk := theirs.recv(_BYTES):
                program.write(chunk)
        with contextlib.suppress(Exception):
            program.end_input()

    sender = Thread(target=send, daemon=True)

    def receive() -> None:
        with contextlib.suppress(Exception):
            for kind, piece in program.pieces():
                if kind == STDERR:
                    _write(2, piece)
                else:
                    theirs.sendall(piece)
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_WR)
        # Until the caller has closed its end.
        sender.join()
        theirs.close()
        program.close()

    sender.start()
    Thread(target=receive, daemon=True).start()
    return ours


def _resize(program: Program) -> None:
    # Not shutil's function, which believes COLUMNS and LINES.
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    # The program may have ended, and its terminal with it.
    with contextlib.suppress(Exception):
        program.resize(columns, lines)


def _send_input(program: Program) -> None:
    # The program may end first.
    with contextlib.suppress(Exception):
        while chunk := os.read(0, _BYTES):
            program.write(chunk)
        program.end_input()


def _write(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass each key on as it is: the other terminal echoes, and turns Ctrl-C into a signal there."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin.fileno())
    # Not the default, which throws away what was typed already.
    tty.setraw(sys.stdin.fileno(), termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
