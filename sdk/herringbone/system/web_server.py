"""uvicorn with limits of connections (`connections`), which it does not have itself. Needs the extra page or serve.

listener --accept--> [1] the connection is counted, also before and during the handshake of TLS
loop --transport---> [2] the connection gets its protocol
application -------> [3] `connections.admit`: the request's signature or token is right, and whose it is
every second ------> [4] clients that are too slow are dropped
"""

from __future__ import annotations

import socket
import time
from asyncio import sslproto
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

from herringbone.system.connections import Connection, Room, noted

_MAX_HEAD_BYTES = 64 << 10
# Connections that are accepted before those that are there are read again: others need not wait for a crowd.
_ACCEPTED_AT_ONCE = 16
_REST_SECONDS = 0.001
# Of a listener with TLS: how long the kernel waits for first bytes, those of a handshake, and how many other clients
# are closed before the rest of the loop has its turn.
_DEFERRED_SECONDS, _HANDSHAKE, _CLOSED_AT_ONCE = 5, b"\x16\x03", 64
# asyncio's buffer of each connection with TLS has 256 KiB by default, also that of a stranger.
_TLS_BUFFER_BYTES = 32 << 10
# Bytes of one connection that are parsed before others have their turn: a read may hold 40,000 chunks of one byte.
_PARSED_AT_ONCE, _PARSED_OF_CALLERS = 8 << 10, 64 << 10


def web_config(app: Any, room: Room, **options: Any) -> uvicorn.Config:
    """Return the settings of a server with limits; `options` are more of uvicorn's.

    >>> listener = CountingListener(listener, room)                                      # doctest: +SKIP
    >>> uvicorn.Server(web_config(app, room)).run(sockets=[listener])                    # doctest: +SKIP
    """

    # Not before Python 3.11; of the whole process, which serves and does nothing else with TLS in this loop.
    sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES

    async def sweep() -> None:
        room.sweep(time.monotonic())

    return uvicorn.Config(
        app,
        http=cast("type[H11Protocol]", partial(_Protocol, room)),
        # Other loops do not accept by the listener's own method.
        loop="asyncio",
        ws="none",
        access_log=False,
        # Strangers must not fill it: a warning is a request that is no HTTP.
        log_level="error",
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        callback_notify=sweep,
        timeout_notify=1,
        **options,
    )


class CountingListener(socket.socket):
    """A listener in place of another one, whose connections are counted in a room."""

    def __init__(self, listener: socket.socket, room: Room, *, tls: bool = False) -> None:
        super().__init__(fileno=listener.detach())
        self._room = room
        self._accepted, self._tls = 0, tls
        if tls:
            # The kernel keeps clients back that send nothing: asyncio prepares a handshake for each accepted one.
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFERRED_SECONDS)

    def accept(self) -> tuple[socket.socket, Any]:
        # The loop accepts until it would block, and calls again when it has read the others.
        if self._accepted >= _ACCEPTED_AT_ONCE:
            self._accepted = 0
            raise BlockingIOError
        if self._room.is_crowded(time.monotonic()):
            # The kernel's queue holds the rest meanwhile, and threads that check proofs get the processor.
            time.sleep(_REST_SECONDS)
            raise BlockingIOError
        try:
            accepted, address = super().accept()
            for _ in range(_CLOSED_AT_ONCE):
                if not self._tls or _begins_handshake(accepted):
                    break
                accepted.close()
                accepted, address = super().accept()
        except OSError:
            self._accepted = 0
            raise
        self._accepted += 1
        self._room.enter(accepted, time.monotonic())
        return accepted, address


def _begins_handshake(accepted: socket.socket) -> bool:
    """Report whether a client may speak TLS: it has sent the begin of a handshake, or nothing yet."""
    try:
        begin = accepted.recv(len(_HANDSHAKE), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return bool(begin) and _HANDSHAKE.startswith(begin)


class _Protocol(H11Protocol):
    """uvicorn's protocol, which notes in its connection what the client is at."""

    def __init__(self, room: Room, **options: Any) -> None:
        super().__init__(**options)
        self._room = room
        self._connection: Connection | None = None
        self._inner, self.app = self.app, self._call
        # Read, and not parsed yet.
        self._rest, self._is_paused = bytearray(), False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connection = self._room.find(transport.get_extra_info("socket").fileno())
        if self._connection is None:
            # It has had to go before it had a transport.
            transport.abort()
        else:
            self._connection.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._connection is not None:
            self._room.leave(self._connection)

    def data_received(self, data: bytes) -> None:
        if self._is_answered_stranger():
            # The rest of a request that nobody reads. The sweep ends the connection.
            self._note_head()
            return
        waits = bool(self._rest)
        self._rest += data
        if not waits:
            self._parse()

    def _parse(self) -> None:
        most = _PARSED_OF_CALLERS if self._connection is not None and self._connection.caller else _PARSED_AT_ONCE
        piece = bytes(self._rest[:most])
        del self._rest[:most]
        if not piece or self.transport.is_closing() or self._is_answered_stranger():
            self._rest.clear()
            return
        super().data_received(piece)
        if self._rest:
            self._is_paused = True
            self.flow.pause_reading()
            self.loop.call_soon(self._parse)
        elif self._is_paused:
            self._is_paused = False
            # A next request waits for the answer to this one, and a long body until the application takes it.
            if not (self.conn.trailing_data[0] or (self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT)):
                self.flow.resume_reading()
        self._note_state()
        self._note_head()

    def _note_head(self) -> None:
        if self._connection is not None and self._connection.is_idle and self._connection.head_since is None:
            self._connection.head_since = time.monotonic()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_state()

    def _is_answered_stranger(self) -> bool:
        """Report whether a stranger still sends a request that has its answer, which is most often a refusal."""
        return (
            self._connection is not None
            and not self._connection.caller
            and self.cycle is not None
            and self.cycle.response_complete
            and self.conn.their_state is h11.SEND_BODY
        )

    def _note_state(self) -> None:
        if self._connection is not None:
            self._connection.is_idle = self.cycle is None or self.cycle.response_complete
            if not self._connection.is_idle:
                self._connection.head_since = None

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        if self._connection is not None:
            scope = noted(scope, self._room, self._connection)
        await self._inner(scope, receive, send)
