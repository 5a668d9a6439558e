"""A socket of this machine that is there only once somebody listens at it."""

from __future__ import annotations

import socket
from pathlib import Path


def listen(path: str, backlog: int) -> socket.socket:
    """Return a listening, non-blocking socket that appears under `path` whole.

    `bind` makes the file, and until `listen` whoever connects is refused, just as after the listener's death. So we
    bind beside the path and rename: at the path itself, no file means "not yet", and refused means "no more".
    Raises OSError.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        unready = f"{path}.new"
        listener.bind(unready)
        listener.listen(backlog)
        listener.setblocking(False)
        Path(unready).rename(path)
    except OSError:
        listener.close()
        raise
    return listener
