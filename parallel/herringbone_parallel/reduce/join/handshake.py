"""Both ends of a connection prove that they know the job's token; later messages are bound to these proofs.

    accepting                              connecting
      version, nonce a  ------------------>
                        <------------------  nonce b, HMAC(token, "connects" version a b)
      HMAC(token, "accepts" version a b)  ->
                        <------------------  hello, HMAC(key of connecting)         number 0
      answer, HMAC(key of accepting)  ----->                                        number 0

The keys are HMAC(token, side version a b), so each connection has keys of its own. A process that sits in between can
neither change nor repeat a message, nor put a message of another connection in its place. Until the proof, each end
reads a fixed number of bytes and parses nothing. The token itself never travels.

Nothing is encrypted, and the chunks that a core sends over the connection afterwards have no MAC: see
`docs/understand/security.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.messages import VERSION

_HELLO = struct.Struct("<4sI32s")
_MAGIC = b"HBRD"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
# The answer to a wrong proof. It is derived from nothing, and tells the other end that a retry is useless.
_REFUSAL = bytes(_PROOF_BYTES)
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<QI")
# A roster of thousands of ranks is far smaller; a larger length is a corrupt or foreign message.
_MAX_MESSAGE_BYTES = 16 << 20
_SEND_SECONDS = 5.0


class RefusedError(ParallelError):
    """The other end does not know the token, or does not belong to a Herringbone job.

    To fix: Check that all ranks belong to one job, and that no other program uses the port in the message.
    """


class AuthenticatedConnection:
    """A connection whose other end has proven to know the token.

        connection = handshake.connect(plain, token, until)
        connection.send({"rank": 1})
        answer = connection.receive(until)
        core_takes(connection.socket)

    `until` is a time of `time.monotonic`. Messages are JSON objects, each with a MAC over its number, its length and
    its text. One thread at a time uses a connection.
    """

    def __init__(self, connection: socket.socket, own_key: bytes, other_key: bytes) -> None:
        self.socket = connection
        self._own_key, self._other_key = own_key, other_key
        self._sent = self._received = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send one JSON object; raises `OSError` as sockets do."""
        data = self.seal(json.dumps(message).encode())
        self.socket.settimeout(_SEND_SECONDS)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, until: float) -> dict[str, Any]:
        """Read one object that the other end sent.

        Raises `ParallelError` for a message that was changed or is malformed, and for the text under its key "error";
        `OSError` as sockets do.
        """
        (length,) = _LENGTH.unpack(_read(self.socket, _LENGTH.size, until))
        if length > _MAX_MESSAGE_BYTES:
            raise ParallelError(
                f"a message of {length} bytes while connecting: the limit is {_MAX_MESSAGE_BYTES} bytes"
            )
        # The parser sees only what the other end wrote.
        message = json.loads(self.open(_read(self.socket, length, until)))
        if not isinstance(message, dict):
            raise ParallelError(f"a message while connecting is not a JSON object: {message!r}")
        # Any answer may be an error, so all callers get it as an exception.
        if "error" in message:
            raise ParallelError(str(message["error"]))
        return message

    def seal(self, data: bytes) -> bytes:
        """Return bytes behind their MAC, for `open` at the other end, which opens in the order of sealing."""
        self._sent += 1
        return _mac(self._own_key, self._sent, data) + data

    def open(self, sealed: bytes) -> bytes:
        """Return the bytes that the other end sealed; raises `ParallelError` for any others."""
        data = sealed[_PROOF_BYTES:]
        if not hmac.compare_digest(sealed[:_PROOF_BYTES], _mac(self._other_key, self._received + 1, data)):
            raise ParallelError("a message was changed on its way: something sits between the hosts")
        self._received += 1
        return data

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def accept(connection: socket.socket, token: bytes, until: float) -> AuthenticatedConnection:
    """Check the proof of a connecting process, then prove this end; raises `RefusedError` for a wrong proof.

    All of it ends before `until`, however slowly the other end sends.
    """
    ours = secrets.token_bytes(_NONCE_BYTES)
    greeting = _HELLO.pack(_MAGIC, VERSION, ours)
    connection.settimeout(_left(until))
    connection.sendall(greeting)
    answer = _read(connection, _NONCE_BYTES + _PROOF_BYTES, until)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    transcript = greeting + theirs
    # A comparison whose time does not depend on the bytes: it tells an attacker nothing about the right proof.
    if not hmac.compare_digest(proof, _derive(token, b"connects", transcript)):
        connection.sendall(_REFUSAL)
        raise RefusedError("the other end does not know this job's token")
    # Only after the check, so that a stranger gets nothing that is derived from the token.
    connection.sendall(_derive(token, b"accepts", transcript))
    own_key, other_key = (_derive(token, side, transcript) for side in (b"accepting", b"connecting"))
    return AuthenticatedConnection(connection, own_key, other_key)


def connect(connection: socket.socket, token: bytes, until: float) -> AuthenticatedConnection:
    """Prove this end, then check the proof of the accepting one; raises `RefusedError` if either fails.

    Raises `OSError` if the connection ends before: the acceptor may have had too many, so the caller tries again.
    """
    greeting = _read(connection, _HELLO.size, until)
    magic, version, _ = _HELLO.unpack(greeting)
    if magic != _MAGIC:
        raise RefusedError("the process that listens there does not belong to a Herringbone job")
    # Before anything else: ends with different versions would misread each other's messages.
    if version != VERSION:
        raise RefusedError(f"it speaks version {version} of the protocol, this end {VERSION}: install the same release")
    ours = secrets.token_bytes(_NONCE_BYTES)
    transcript = greeting + ours
    connection.settimeout(_left(until))
    connection.sendall(ours + _derive(token, b"connects", transcript))
    proof = _read(connection, _PROOF_BYTES, until)
    if proof == _REFUSAL:
        raise RefusedError("it refused: the two ends have different tokens")
    if not hmac.compare_digest(proof, _derive(token, b"accepts", transcript)):
        raise RefusedError("it does not know this job's token")
    own_key, other_key = (_derive(token, side, transcript) for side in (b"connecting", b"accepting"))
    return AuthenticatedConnection(connection, own_key, other_key)


def _derive(token: bytes, side: bytes, transcript: bytes) -> bytes:
    # The side is part of each value, so that one end's proof or message cannot be sent back to it as the other end's.
    return hmac.digest(token, side + b"\0" + transcript, hashlib.sha256)


def _mac(key: bytes, number: int, data: bytes) -> bytes:
    # With its number, a message cannot be repeated, left out or moved.
    return hmac.digest(key, _NUMBER.pack(number, len(data)) + data, hashlib.sha256)


def _left(until: float) -> float:
    """Return the seconds until that time; raises `TimeoutError` if it has passed."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _read(connection: socket.socket, size: int, until: float) -> bytes:
    """Read exactly `size` bytes: TCP delivers them in pieces of any size."""
    data = bytearray()
    while len(data) < size:
        # For all pieces together: a stranger that sends a byte every second must not stay longer than a silent one.
        connection.settimeout(_left(until))
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)
