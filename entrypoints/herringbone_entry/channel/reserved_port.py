"""A TCP port kept free for rank 0, from the moment its host is ready to the moment rank 0 listens there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# What systems give to whoever asks for any free port: IANA's range, and Linux's where it says nothing else.
_USUAL_RANGE = (32_768, 65_535)
_LOWEST = 10_000
_TRIES = 50


class ReservedPort:
    """A port that nobody else is given until `release`.

    >>> port = ReservedPort()
    >>> port.number > 0
    True
    >>> port.release()

    It is none of those that a system hands out by itself, so that none of mpirun's own, opened between the release and
    rank 0's first word, can take it.
    """

    def __init__(self) -> None:
        # Bound but not listening: another job on this machine finds it taken, and looks further.
        self._socket = socket.socket()
        lowest, highest = numbers_left(_handed_out())
        for _ in range(_TRIES):
            try:
                self._socket.bind(("", lowest + int.from_bytes(os.urandom(4), "big") % (highest - lowest + 1)))
                break
            except OSError:
                continue  # it is taken
        else:
            self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def numbers_left(handed_out: tuple[int, int]) -> tuple[int, int]:
    """Return the larger range of unprivileged ports beside those that the system hands out. Pure.

    >>> numbers_left((32768, 60999)), numbers_left((15000, 40000))
    ((10000, 32767), (40001, 65535))
    """
    first, last = handed_out
    below, above = (_LOWEST, first - 1), (last + 1, 65_535)
    widest = max(below, above, key=lambda part: part[1] - part[0])
    return widest if widest[0] < widest[1] else (_LOWEST, 65_535)


def _handed_out() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return _USUAL_RANGE
    return int(first), int(last)
