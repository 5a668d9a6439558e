"""Run a program in a running container, over the engine's own API.

The `docker` command could do this, but Podman's users and many build machines lack it, and it would look for an engine
by its own rules. The connection is the same plain stream that a controller uses.

    without a terminal    output comes in frames: 4 bytes of kind (1 stdout, 2 stderr), 4 bytes of size, then the bytes
    with a terminal       output comes as it is; the engine makes the terminal, this machine's gets into raw mode
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from herringbone.engine.client import hijack
from herringbone.system.attached import STDOUT, attach

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_BYTES = 65_536
_HEADER_BYTES = 8


class Execution:
    """One program in a container, a `system.attached.Program`; `terminal` gives it a terminal.

    >>> Execution(engine, "digits-1-algo-1", ["ls", "/opt/ml"], terminal=False).run()    # doctest: +SKIP
    0

    Starts the program. Raises `EngineError`.
    """

    def __init__(self, engine: Engine, container: str, command: Sequence[str], *, terminal: bool) -> None:
        self._engine, self._terminal = engine, terminal
        self._id: str = engine.post(f"/containers/{container}/exec", exec_request(command, terminal=terminal))["Id"]
        self._connection = engine.open()
        try:
            body = {"Detach": False, "Tty": self._terminal}
            hijack(self._connection, f"/exec/{self._id}/start", {}, body)
        except OSError as error:
            self.close()
            raise self._engine.no_answer(error) from error
        except BaseException:
            self.close()
            raise
        # A program may be silent for as long as it likes.
        self._connection.settimeout(None)

    def run(self) -> int:
        """Join the program with this process's standard input and output, and return its exit code."""
        with contextlib.closing(self):
            attach(self, terminal=self._terminal)
        code = self._engine.get(f"/exec/{self._id}/json")["ExitCode"]
        return int(code or 0)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        if self._terminal:
            while chunk := self._connection.recv(_BYTES):
                yield STDOUT, chunk
        else:
            yield from split_frames(self._connection.recv)

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def end_input(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def resize(self, columns: int, lines: int) -> None:
        self._engine.post(f"/exec/{self._id}/resize", h=lines, w=columns)

    def close(self) -> None:
        self._connection.close()


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
