"""A small HTTP server for posts of processes that know a token. Loaded when the first connection arrives.

Every user of a machine reaches its loopback interface. A peer without the token therefore costs one of MAX_CONNECTIONS,
and the oldest one is closed for the next: a post with the token is over within milliseconds.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import socket
import threading
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

MAX_CONNECTIONS = 32
MAX_BODY_BYTES = 65_536
# A peer that sends nothing for this long is disconnected.
_IDLE_SECONDS = 5.0


def serve(listener: socket.socket, token: bytes, take: Callable[[bytes], None]) -> None:
    """Pass the body of each post that has the token to `take`, for ever; each connection has a thread."""
    server = _Server(listener, token, take)
    while True:
        server.handle_request()


class _Server(http.server.ThreadingHTTPServer):
    def __init__(self, listener: socket.socket, token: bytes, take: Callable[[bytes], None]) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.authorization, self.take = b"Bearer " + token, take
        # The connections that are open, the oldest first; `_lock` guards it, because each ends in its own thread.
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = self._open.popleft() if len(self._open) >= MAX_CONNECTIONS else None
            self._open.append(request)
        if oldest is not None:
            with contextlib.suppress(OSError):
                # Wakes the thread that reads it, which then closes it.
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Print nothing: a peer may send anything."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_SECONDS

    def do_POST(self) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self.server.authorization):
            self.send_error(HTTPStatus.UNAUTHORIZED)
            return
        length = self.headers.get("Content-Length", "")
        # At most six digits: Python reads longer numbers slowly, or not at all.
        if not (length.isascii() and length.isdigit() and len(length) <= 6 and int(length) <= MAX_BODY_BYTES):
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self.server.take(self.rfile.read(int(length)))
        self.send_response(HTTPStatus.OK)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing: a peer may send anything."""
