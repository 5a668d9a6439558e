"""`python -m herringbone_entry.relay PORT`: joins standard input and output with a port of this host's loopback.

Clients start it in a container or on a node, and so reach a port that nothing outside of the host can reach.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

_LOOPBACK = "127.0.0.1"
_BYTES = 65_536
# Time for the last words of the port after the end of the input.
_LAST_SECONDS = 5.0


def main() -> None:
    """Relay until either side ends; exit with 1 if nothing listens at the port."""
    try:
        connection = socket.create_connection((_LOOPBACK, int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"herringbone: nothing listens at {_LOOPBACK}, port {sys.argv[1]}, of this host: {error.strerror}")
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    while chunk := connection.recv(_BYTES):
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view) :]


def _send(connection: socket.socket) -> None:
    while chunk := os.read(0, _BYTES):
        connection.sendall(chunk)
    connection.shutdown(socket.SHUT_WR)
    # The engine does not end a program in a container when its client goes away, so the relay ends itself.
    time.sleep(_LAST_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
