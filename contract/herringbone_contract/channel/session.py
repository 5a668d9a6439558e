"""Proofs and keys of a connection between a job's machines: they seal each frame that goes, and check each that comes.

    frame = length (4 bytes) | MAC (32 bytes) | JSON
    MAC   = HMAC-SHA256(key of this direction, number of the frame in this direction (8 bytes) | JSON)

The keys come from the job's secret and from both challenges of the handshake. So a frame of another connection, of the
other direction or of another place in the row does not fit, and nobody without the secret can make one that does. The
MAC does not hide what a frame says. Supervisors use it, and keepers of `ssh:`. Decision 032 has the reasons.
"""

from __future__ import annotations

import hmac

MAC_BYTES = 32
_NUMBER_BYTES = 8
_HASH = "sha256"


class SealError(Exception):
    """A frame that the other side did not send at this place, or a proof that is wrong."""


def proof(key: bytes, role: str, host: str, theirs: str, ours: str) -> str:
    """Return the answer to a challenge that only a holder of the key can compute.

    The role is part of it: otherwise a client could send the first host's own proof back to it as its own.
    """
    return hmac.digest(key, f"{role}\0{host}\0{theirs}\0{ours}".encode(), _HASH).hex()


class Session:
    """The two directions of one connection, seen from one of its ends.

    >>> first, host = session(b"key", "algo-2", "a", "b", is_first=True), session(b"key", "algo-2", "a", "b")
    >>> host.open(first.seal(b"{}"))
    b'{}'
    """

    def __init__(self, sending_key: bytes, receiving_key: bytes) -> None:
        self._sending_key, self._receiving_key = sending_key, receiving_key
        # Each frame has a number, so that a repeated, dropped or moved frame fails its check.
        self._sent = self._received = 0

    def seal(self, body: bytes) -> bytes:
        """Return the next frame to send: its MAC, then the body."""
        mac = _mac(self._sending_key, self._sent, body)
        self._sent += 1
        return mac + body

    def open(self, frame: bytes) -> bytes:
        """Return the body of the next frame. Raises `SealError` when somebody else made, changed or moved the frame."""
        mac, body = frame[:MAC_BYTES], frame[MAC_BYTES:]
        # `compare_digest` takes the same time for every wrong MAC, so that its duration reveals no prefix.
        if not hmac.compare_digest(mac, _mac(self._receiving_key, self._received, body)):
            raise SealError("a frame that the other host did not send: something between the hosts changes their bytes")
        self._received += 1
        return body


def session(key: bytes, host: str, challenge: str, answer: str, *, is_first: bool = False) -> Session:
    """Return the session of the first host with `host` after a handshake, as `host` sees it, or the first host.

    `challenge` is the first host's, `answer` is the other one's. Both are fresh for each connection.
    """
    secret = hmac.digest(key, f"session\0{host}\0{challenge}\0{answer}".encode(), _HASH)
    to_host, to_first = (hmac.digest(secret, direction, _HASH) for direction in (b"to host", b"to first"))
    return Session(to_host, to_first) if is_first else Session(to_first, to_host)


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(_NUMBER_BYTES, "big") + body, _HASH)
