"""Both ends of a connection prove that they know the job's token, before either says anything else.

    accepting                              connecting
      version, nonce a  ------------------>
                        <------------------  nonce b, HMAC(token, "connects" a b)
      HMAC(token, "accepts" a b)  -------->

Until then only these fixed sizes are read. The token itself never travels. What follows is not encrypted: gradients
cross the hosts' network in the clear, as with every collective library.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.messages import VERSION

_HELLO = struct.Struct("<4sI32s")
_MAGIC = b"HBRD"
_PROOF_BYTES = 32
_LENGTH = struct.Struct("<I")
_MOST = 16 << 20


class RefusedError(ParallelError):
    """The other end does not know the token, or is no part of a job of ours."""


def accept(connection: socket.socket, token: bytes) -> None:
    """Let a connection in, or raise `RefusedError`. The connection has a timeout, which bounds each read."""
    ours = secrets.token_bytes(32)
    connection.sendall(_HELLO.pack(_MAGIC, VERSION, ours))
    answer = _read(connection, 64)
    theirs, proof = answer[:32], answer[32:]
    if not hmac.compare_digest(proof, _proof(token, b"connects", ours, theirs)):
        raise RefusedError("the other end does not know this job's token")
    connection.sendall(_proof(token, b"accepts", ours, theirs))


def connect(connection: socket.socket, token: bytes) -> None:
    """Ask to be let in; raises `RefusedError` where the other end refuses, or does not know the token itself."""
    magic, version, theirs = _HELLO.unpack(_read(connection, _HELLO.size))
    if magic != _MAGIC:
        raise RefusedError("what listens there is not part of a Herringbone job")
    if version != VERSION:
        raise RefusedError(f"it speaks version {version} of the protocol, this end {VERSION}: install the same release")
    ours = secrets.token_bytes(32)
    connection.sendall(ours + _proof(token, b"connects", theirs, ours))
    try:
        proof = _read(connection, _PROOF_BYTES)
    except ConnectionError:
        raise RefusedError("it refused: the two ends have different tokens") from None
    if not hmac.compare_digest(proof, _proof(token, b"accepts", theirs, ours)):
        raise RefusedError("it does not know this job's token")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON object, with its length before it."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read what `send` sent; raises `ParallelError` for anything else, and `OSError` as sockets do."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > _MOST:
        raise ParallelError(f"a message of {length} bytes while connecting: {_MOST} are the most")
    message = json.loads(_read(connection, length))
    if not isinstance(message, dict):
        raise ParallelError(f"a message while connecting is no object: {message!r}")
    if "error" in message:
        raise ParallelError(str(message["error"]))
    return message


def _proof(token: bytes, side: bytes, accepting: bytes, connecting: bytes) -> bytes:
    return hmac.digest(token, side + accepting + connecting, hashlib.sha256)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)
