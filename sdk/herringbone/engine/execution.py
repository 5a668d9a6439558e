"""Run a program in a running container, over the engine's own API.

The `docker` command could do this, but Podman's users and many build machines lack it, and it would look for an engine
by its own rules. The connection is the same plain stream that a controller uses.

    without a terminal    output comes in frames: 4 bytes of kind (1 stdout, 2 stderr), 4 bytes of size, then the bytes
    with a terminal       output comes as it is; the engine makes the terminal, this machine's gets into raw mode
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from herringbone.engine.client import hijack

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_BYTES = 65_536
_HEADER_BYTES = 8
_STDERR = 2


class Execution:
    """One program in a container; `terminal` gives it a terminal.

    >>> Execution(engine, "digits-1-algo-1", ["ls", "/opt/ml"], terminal=False).run()    # doctest: +SKIP
    0

    Raises `EngineError`.
    """

    def __init__(self, engine: Engine, container: str, command: Sequence[str], *, terminal: bool) -> None:
        self._engine, self._terminal = engine, terminal
        self._id: str = engine.post(f"/containers/{container}/exec", exec_request(command, terminal=terminal))["Id"]

    def start(self) -> socket.socket:
        """Start the program and return the stream to its standard input and from its output."""
        connection = self._engine.open()
        try:
            body = {"Detach": False, "Tty": self._terminal}
            hijack(connection, f"/exec/{self._id}/start", {}, body)
        except OSError as error:
            connection.close()
            raise self._engine.no_answer(error) from error
        except BaseException:
            connection.close()
            raise
        # A program may be silent for as long as it likes.
        connection.settimeout(None)
        return connection

    def run(self) -> int:
        """Run the program with this process's standard input and output, and return its exit code."""
        with self.start() as connection, _raw() if self._terminal else contextlib.nullcontext():
            if self._terminal:
                self._resize()
                signal.signal(signal.SIGWINCH, lambda *_: self._resize())
            Thread(target=_send_input, args=(connection,), daemon=True).start()
            pieces = _plain(connection) if self._terminal else split_frames(connection.recv)
            for kind, piece in pieces:
                _write(2 if kind == _STDERR else 1, piece)
        code = self._engine.get(f"/exec/{self._id}/json")["ExitCode"]
        return int(code or 0)

    def _resize(self) -> None:
        # Not shutil's function, which believes COLUMNS and LINES.
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
        # The program may have ended, and its terminal with it.
        with contextlib.suppress(Exception):
            self._engine.post(f"/exec/{self._id}/resize", h=lines, w=columns)


def exec_request(command: Sequence[str], *, terminal: bool) -> dict[str, Any]:
    """Return the request for a program in a container. Pure.

    >>> exec_request(["ls", "a b"], terminal=False)["Cmd"]
    ['ls', 'a b']
    """
    request = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": terminal, "Cmd": list(command)}
    # Programs that draw on a terminal read its kind there.
    return {**request, "Env": [f"TERM={os.environ.get('TERM', 'xterm')}"]} if terminal else request


def split_frames(receive: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the bytes of each frame, in pieces as they come.

    >>> pieces = iter([bytes([2, 0, 0, 0, 0, 0, 0, 3]) + b"ab", b"c", b""])
    >>> list(split_frames(lambda _: next(pieces)))
    [(2, b'ab'), (2, b'c')]
    """
    buffer, kind, left = b"", 0, 0
    while chunk := receive(_BYTES):
        buffer += chunk
        while buffer:
            if not left:
                if len(buffer) < _HEADER_BYTES:
                    break
                kind, left = buffer[0], int.from_bytes(buffer[4:_HEADER_BYTES], "big")
                buffer = buffer[_HEADER_BYTES:]
                continue
            piece, buffer = buffer[:left], buffer[left:]
            left -= len(piece)
            yield kind, piece


def joined(connection: socket.socket) -> socket.socket:
    """Return a socket with the standard output of a program without a terminal, and its standard input."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with contextlib.suppress(OSError):
            while chunk := theirs.recv(_BYTES):
                connection.sendall(chunk)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)

    sender = Thread(target=send, daemon=True)

    def receive() -> None:
        with contextlib.suppress(OSError):
            for kind, piece in split_frames(connection.recv):
                if kind == _STDERR:
                    _write(2, piece)
                else:
                    theirs.sendall(piece)
        with contextlib.suppress(OSError):
            theirs.shutdown(socket.SHUT_WR)
        # Until the caller has closed its end.
        sender.join()
        theirs.close()
        connection.close()

    sender.start()
    Thread(target=receive, daemon=True).start()
    return ours


def _plain(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    while chunk := connection.recv(_BYTES):
        yield 1, chunk


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(0, _BYTES):
            connection.sendall(chunk)
        # The program reads the end of its input.
        connection.shutdown(socket.SHUT_WR)


def _write(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass each key on as it is: the terminal in the container echoes, and turns Ctrl-C into a signal there."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin.fileno())
    # Not the default, which throws away what was typed already.
    tty.setraw(sys.stdin.fileno(), termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
