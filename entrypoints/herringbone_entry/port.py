"""A TCP port kept free for rank 0, from the moment its host is ready to the moment the ranks start."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port that nobody else is given until `release`.

    >>> port = ReservedPort()
    >>> port.number > 0
    True
    >>> port.release()
    """

    def __init__(self) -> None:
        # Bound but not listening: whoever asks for any free port gets another one.
        self._socket = socket.socket()
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
