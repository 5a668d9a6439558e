"""TCP ports that a host opens for its ranks: ports that stay free for rank 0, and one that takes posts of progress."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# The ephemeral range: systems give one of these ports to a program that asks for any free port (IANA).
_USUAL_RANGE = (32_768, 65_535)
_LOWEST = 10_000
_TRIES = 50
LOOPBACK = "127.0.0.1"
_BACKLOG = 16


class ReservedPort:
    """A port that the system gives to nobody else until `release`.

    >>> port = ReservedPort()
    >>> port.number > 0
    True
    >>> port.release()

    The port lies outside the ephemeral range. mpirun asks for free ports between the release and the moment rank 0
    listens, and the system never gives it this one.
    """

    def __init__(self) -> None:
        # The socket is bound and does not listen: another job on this machine finds the port taken and tries the next.
        self._socket = socket.socket()
        lowest, highest = numbers_left(_ephemeral_range())
        for _ in range(_TRIES):
            try:
                # `random` would cost every supervisor a few milliseconds of imports.
                self._socket.bind(("", lowest + int.from_bytes(os.urandom(4), "big") % (highest - lowest + 1)))
                break
            except OSError:
                continue  # another process has it
        else:
            self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Free the port for rank 0."""
        self._socket.close()


class StatusListener:
    """Listens on the loopback interface for posts of the ranks' progress, which the observer answers.

    `descriptor` is that of the socket. `token` is that of a file in memory, with the secret that posts must have:
    ranks read it at `token_path`, as often as they like. Raises `OSError` where that cannot work.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        listener = socket.socket()
        with listener:
            listener.bind((LOOPBACK, 0))
            listener.listen(_BACKLOG)
            self.port: int = listener.getsockname()[1]
            self.token = os.memfd_create("herringbone-token")
            os.write(self.token, os.urandom(16).hex().encode())
            self.descriptor = listener.detach()
        # Not /dev/fd: ranks, and programs that they start, do not inherit this process's descriptors.
        self.token_path = f"/proc/{os.getpid()}/fd/{self.token}"

    def stop_listening(self) -> None:
        """Close the socket here: when the observer's copy closes, too, posts are refused and no longer wait."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Release both descriptors."""
        self.stop_listening()
        os.close(self.token)


def numbers_left(ephemeral: tuple[int, int]) -> tuple[int, int]:
    """Return the larger range of unprivileged ports outside the ephemeral range. Pure.

    >>> numbers_left((32768, 60999)), numbers_left((15000, 40000))
    ((10000, 32767), (40001, 65535))
    """
    first, last = ephemeral
    below, above = (_LOWEST, first - 1), (last + 1, 65_535)
    widest = max(below, above, key=lambda ports: ports[1] - ports[0])
    return widest if widest[0] < widest[1] else (_LOWEST, 65_535)


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return _USUAL_RANGE
    return int(first), int(last)
