"""A port of this machine's loopback that leads to a port of a host's loopback, until Ctrl-C.

editor -> 127.0.0.1:PORT of this machine -> HostAccess.connect -> 127.0.0.1:PORT of the host
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

from herringbone.protocols.host_access import LOOPBACK
from herringbone_contract.errors import HerringboneError, RequestError

if TYPE_CHECKING:
    from herringbone.protocols.host_access import HostAccess

_BYTES = 65_536


class Tunnel:
    """Listens at `port`, or at a free port if another program has that one.

    >>> with Tunnel(access, 5678, wanted=None) as tunnel:            # doctest: +SKIP
    ...     print(tunnel.port); tunnel.serve(print)

    `wanted` is a port that the user named, which must be free. Raises `RequestError` when nothing can listen.
    """

    def __init__(self, access: HostAccess, target: int, *, wanted: int | None = None) -> None:
        self._access, self._target = access, target
        self._listener = _listen(target if wanted is None else wanted, instead=wanted is None)
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def serve(self, say: Callable[[str], None]) -> NoReturn:
        """Relay connections until `KeyboardInterrupt`; `say` gets what went wrong with one."""
        while True:
            client, _ = self._listener.accept()
            Thread(target=self._relay, args=(client, say), daemon=True).start()

    def _relay(self, client: socket.socket, say: Callable[[str], None]) -> None:
        with client:
            try:
                remote = self._access.connect(self._target)
            except (OSError, HerringboneError) as error:
                say(str(error))
                return
            with remote:
                back = Thread(target=_pump, args=(remote, client), daemon=True)
                back.start()
                _pump(client, remote)
                back.join()


def _listen(port: int, *, instead: bool) -> socket.socket:
    try:
        # Loopback only: whoever reaches the port can debug the rank.
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        if not instead:
            raise RequestError(f"port {port} of this machine: {error.strerror}; name another with --port") from error
    return socket.create_server((LOOPBACK, 0))


def _pump(source: socket.socket, target: socket.socket) -> None:
    # A side that breaks ends the connection like one that closes it.
    with contextlib.suppress(OSError):
        while chunk := source.recv(_BYTES):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
