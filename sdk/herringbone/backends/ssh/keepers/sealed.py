"""Connections between the keepers of one job: both ends prove that they have its key, and each frame has a MAC.

    connector                                        acceptor
                     <------ challenge ------------
    to, from, its own challenge, proof ----------->  only the keeper of machine `to` accepts
                     <------ proof ----------------
    frames           <----------------------------> length (4 bytes) | MAC | body

The handshake and the session are those of the supervisors' channel (`herringbone_contract.channel`), and so is their
limit: whoever sits on the path can read, and end a connection, and can say nothing. So no secret goes over it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import secrets
import socket
import threading
from typing import IO, Any, cast

from herringbone_contract.channel.session import SealError, Session, proof, session

# A whole tree of checkpoints goes in pieces of at most this size.
PIECE_BYTES = 1 << 20
_MAX_FRAME_BYTES = 64 << 20
# Before a peer has proved itself.
_HELLO_BYTES, _HELLO_SECONDS = 4_096, 5.0
_LENGTH_BYTES, _CHALLENGE_BYTES = 4, 32
_CHALLENGE = re.compile(f"[0-9a-f]{{{2 * _CHALLENGE_BYTES}}}")
_MISSED_PROBES = 3


class Sealed:
    """One end of a proven connection; one thread receives, any may send. Raises `OSError` or `EOFError` at its end."""

    def __init__(self, connection: socket.socket, keys: Session) -> None:
        self._connection, self._keys = connection, keys
        self._sending = threading.Lock()

    def send(self, body: bytes) -> None:
        """Send one frame; an empty one marks the end of a stream."""
        # The lock covers the seal, which numbers the frames in their order on the wire.
        with self._sending:
            _write_frame(self._connection, self._keys.seal(body))

    def send_message(self, message: Any) -> None:
        self.send(json.dumps(message).encode())

    def receive(self) -> bytes:
        """Return the next frame. Raises `SealError` for one that the peer did not send here."""
        return self._keys.open(_read_frame(self._connection, _MAX_FRAME_BYTES))

    def receive_message(self) -> Any:
        return json.loads(self.receive())

    def wait_at_most(self, seconds: float | None) -> None:
        """Have `send` and `receive` fail after so many seconds; None for never."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """End the connection; a thread that waits in `receive` wakes up."""
        # The peer may have been faster.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def connect(address: tuple[str, int], key: bytes, *, me: str, peer: str, patience: float) -> Sealed:
    """Connect to the keeper of machine `peer`. The connection ends when nothing arrives there for `patience` seconds.

    Raises `OSError`, `EOFError` or `SealError`.
    """
    connection = socket.create_connection(address, timeout=patience)
    try:
        connection.settimeout(_HELLO_SECONDS)
        theirs, ours = _challenge_of(_hello(connection)), secrets.token_hex(_CHALLENGE_BYTES)
        link = _link(me, peer)
        hello = {"to": peer, "from": me, "challenge": ours, "proof": proof(key, "host", link, theirs, ours)}
        _write_frame(connection, json.dumps(hello).encode())
        _check(_hello(connection), proof(key, "first", link, ours, theirs))
        return _proven(connection, session(key, link, theirs, ours), patience)
    except BaseException:
        connection.close()
        raise


def accept(connection: socket.socket, key: bytes, *, me: str, patience: float) -> tuple[str, Sealed]:
    """Return a proven peer's machine and the connection with it.

    Raises `OSError`, `EOFError` or `SealError` for a stranger, who learns nothing; the caller closes the connection.
    """
    connection.settimeout(_HELLO_SECONDS)
    ours = secrets.token_hex(_CHALLENGE_BYTES)
    _write_frame(connection, json.dumps({"challenge": ours}).encode())
    hello = _hello(connection)
    peer, theirs = str(hello.get("from")), _challenge_of(hello)
    link = _link(peer, me)
    _check(hello, proof(key, "host", link, ours, theirs))
    _write_frame(connection, json.dumps({"proof": proof(key, "first", link, theirs, ours)}).encode())
    return peer, _proven(connection, session(key, link, ours, theirs, is_first=True), patience)


class FrameStream:
    """A file of frames: what is written goes in pieces, and reads end at the empty frame."""

    def __init__(self, sealed: Sealed) -> None:
        self._sealed, self._rest, self._is_over = sealed, b"", False

    def write(self, data: bytes) -> int:
        for begin in range(0, len(data), PIECE_BYTES):
            self._sealed.send(data[begin : begin + PIECE_BYTES])
        return len(data)

    def read(self, size: int) -> bytes:
        if not self._rest and not self._is_over:
            self._rest = self._sealed.receive()
            self._is_over = not self._rest
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def finish(self) -> None:
        """Mark the end of what was written."""
        self._sealed.send(b"")

    @property
    def file(self) -> IO[bytes]:
        """This stream, for callers that want a file and use only what a stream has."""
        return cast("IO[bytes]", self)


def _link(connector: str, acceptor: str) -> str:
    # Names of machines have no ">": one link's proof fits no other one, also between the same keepers.
    return f"{connector}>{acceptor}"


def _proven(connection: socket.socket, keys: Session, patience: float) -> Sealed:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A cut link sends no word of its end; the kernel finds out, with and without bytes on their way.
    seconds = max(1, round(patience))
    options = {"TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": max(1, seconds // _MISSED_PROBES)}
    options |= {"TCP_KEEPCNT": _MISSED_PROBES, "TCP_USER_TIMEOUT": 1_000 * seconds}
    for name, value in options.items():
        # Not all systems have all of them.
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return Sealed(connection, keys)


def _hello(connection: socket.socket) -> dict[str, Any]:
    try:
        message = json.loads(_read_frame(connection, _HELLO_BYTES))
    except (ValueError, RecursionError) as error:
        raise SealError(f"it is no keeper: {error}") from None
    if not isinstance(message, dict):
        raise SealError("it is no keeper")
    return message


def _challenge_of(message: dict[str, Any]) -> str:
    """Return the peer's challenge: one form alone, so that a challenge cannot look like two members of a proof."""
    challenge = message.get("challenge")
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise SealError("its challenge is none")
    return challenge


def _check(message: dict[str, Any], expected: str) -> None:
    # `compare_digest` takes the same time for every wrong proof, so that its duration reveals no prefix.
    if not hmac.compare_digest(expected.encode(), str(message.get("proof")).encode("utf-8", "replace")):
        raise SealError("it does not have the key of this job")


def _write_frame(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)


def _read_frame(connection: socket.socket, limit: int) -> bytes:
    length = int.from_bytes(_read(connection, _LENGTH_BYTES), "big")
    if length > limit:
        raise SealError(f"a frame of {length} bytes; the limit is {limit}")
    return _read(connection, length)


def _read(connection: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = connection.recv(min(size, PIECE_BYTES))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
