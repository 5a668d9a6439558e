"""A Unix socket whose path exists only once somebody listens at it."""

from __future__ import annotations

import socket
from pathlib import Path


def listen(path: str, backlog: int, kind: type[socket.socket] = socket.socket) -> socket.socket:
    """Return a listening, non-blocking socket that appears under `path` complete.

    At `path` itself, a missing file means "not yet" and a refused connection means "no longer". Raises OSError.
    """
    listener = kind(socket.AF_UNIX)
    try:
        # `bind` makes the file, and the kernel refuses connections until `listen`, as it does after the listener's
        # death. So bind next to the path, and rename once the socket listens: `rename` is atomic.
        unready = f"{path}.new"
        listener.bind(unready)
        listener.listen(backlog)
        listener.setblocking(False)
        Path(unready).rename(path)
    except OSError:
        listener.close()
        raise
    return listener
