"""Both ends of a connection prove that they know the job's token before they exchange any message.

    accepting                              connecting
      version, nonce a  ------------------>
                        <------------------  nonce b, HMAC(token, "connects" a b)
      HMAC(token, "accepts" a b)  -------->

Until then, each end reads a fixed number of bytes and parses nothing. The token itself never travels. Later messages
are not encrypted: gradients cross the hosts' network in the clear, as with every collective library.
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
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_LENGTH = struct.Struct("<I")
# A roster of thousands of ranks is far smaller; a larger length is a corrupt or foreign message.
_MAX_MESSAGE_BYTES = 16 << 20


class RefusedError(ParallelError):
    """The other end does not know the token, or does not belong to a Herringbone job."""


def accept(connection: socket.socket, token: bytes) -> None:
    """Check the proof of a connecting process, then prove this end; raises `RefusedError` for a wrong proof.

    The caller sets a timeout on the connection, which bounds each read.
    """
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(_HELLO.pack(_MAGIC, VERSION, ours))
    answer = _read(connection, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    # A comparison whose time does not depend on the bytes: it tells an attacker nothing about the right proof.
    if not hmac.compare_digest(proof, _proof(token, b"connects", ours, theirs)):
        raise RefusedError("the other end does not know this job's token")
    # Only after the check, so that a stranger gets nothing that is derived from the token.
    connection.sendall(_proof(token, b"accepts", ours, theirs))


def connect(connection: socket.socket, token: bytes) -> None:
    """Prove this end, then check the proof of the accepting one; raises `RefusedError` if either fails."""
    magic, version, theirs = _HELLO.unpack(_read(connection, _HELLO.size))
    if magic != _MAGIC:
        raise RefusedError("the process that listens there does not belong to a Herringbone job")
    # Before anything else: ends with different versions would misread each other's messages.
    if version != VERSION:
        raise RefusedError(f"it speaks version {version} of the protocol, this end {VERSION}: install the same release")
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(ours + _proof(token, b"connects", theirs, ours))
    try:
        proof = _read(connection, _PROOF_BYTES)
    except ConnectionError:
        # An acceptor closes the connection without a word when the proof is wrong.
        raise RefusedError("it refused: the two ends have different tokens") from None
    if not hmac.compare_digest(proof, _proof(token, b"accepts", theirs, ours)):
        raise RefusedError("it does not know this job's token")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON object, preceded by its length."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read one object that `send` sent.

    Raises `ParallelError` for a malformed message and for the text under its key "error", and `OSError` as sockets do.
    """
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > _MAX_MESSAGE_BYTES:
        raise ParallelError(f"a message of {length} bytes while connecting: the limit is {_MAX_MESSAGE_BYTES} bytes")
    message = json.loads(_read(connection, length))
    if not isinstance(message, dict):
        raise ParallelError(f"a message while connecting is not a JSON object: {message!r}")
    # Any answer may be an error, so all callers get it as an exception.
    if "error" in message:
        raise ParallelError(str(message["error"]))
    return message


def _proof(token: bytes, side: bytes, accepting: bytes, connecting: bytes) -> bytes:
    # The side is part of the proof, so that one end's proof cannot be sent back to it as the other end's.
    return hmac.digest(token, side + accepting + connecting, hashlib.sha256)


def _read(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes: TCP delivers them in pieces of any size."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)
