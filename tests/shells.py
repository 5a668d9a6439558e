"""`herringbone shell` as a user runs it, with and without a terminal, and one connection through a tunnel."""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from typing import Any

from herringbone.access.tunnel import Tunnel

# The rank has a server on its own loopback, as a debugger would be.
SCRIPT = """
import socket
server = socket.create_server(("127.0.0.1", 5678))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""
WORDS = "import os, sys; print(os.getcwd(), os.environ['SM_CURRENT_HOST']); sys.exit(sys.stdin.read())"


def shell(name: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herringbone", "shell", name, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def on_terminal(name: str, talk: Sequence[tuple[str, bytes]]) -> tuple[int, str]:
    """Run a shell on a new terminal of 40 x 100, and return the exit code and all that was shown.

    `talk` has what to type, each part once its text has been shown; "$ " is the prompt, that of root, too.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "herringbone", "shell", name]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown, seen, waiting = b"", 0, list(talk)
    while True:
        try:
            piece = os.read(ours, 1000)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if waiting and waiting[0][0] in shown[seen:].decode("utf-8", "replace").replace("# ", "$ "):
            seen = len(shown)
            os.write(ours, waiting.pop(0)[1])
    os.close(ours)
    return child.wait(timeout=30), shown.decode()


def through(access: Any, port: int, words: bytes) -> bytes:
    """Send words to a port of a host through a tunnel, and return the answer."""

    def serve() -> None:
        with tunnel._listener:
            client, _ = tunnel._listener.accept()
            tunnel._relay(client, print)

    with Tunnel(access, port) as tunnel:
        threading.Thread(target=serve, daemon=True).start()
        with socket.create_connection(("127.0.0.1", tunnel.port), timeout=30) as connection:
            connection.sendall(words)
            return connection.recv(100)
