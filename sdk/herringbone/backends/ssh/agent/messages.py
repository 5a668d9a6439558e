"""Messages over a pipe: a line of JSON, and behind it as many bytes as it says. Pure."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]
# The one name that no message may use for itself.
_SIZE = "bytes"
# A line longer than this is no message of ours: something else writes into the pipe.
_MAX_LINE_BYTES = 64 << 20


class WireError(Exception):
    """What came is no message."""


def pack(message: Message, payload: bytes = b"") -> bytes:
    """Return what travels.

    >>> pack({"ask": "hello"}), pack({"log": 1}, b"ab")
    (b'{"ask": "hello"}\\n', b'{"log": 1, "bytes": 2}\\nab')
    """
    assert _SIZE not in message
    if payload:
        message = {**message, _SIZE: len(payload)}
    return json.dumps(message).encode() + b"\n" + payload


class Unpacker:
    """Takes apart what came, in whatever pieces.

    >>> unpacker = Unpacker()
    >>> unpacker.feed(b'{"log": 1, "bytes": 2}\\na'), unpacker.feed(b"b")
    ([], [({'log': 1}, b'ab')])
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Message | None = None
        self._wanted = 0

    def feed(self, chunk: bytes) -> list[tuple[Message, bytes]]:
        """Return the whole messages. Raises `WireError`."""
        self._buffer += chunk
        found: list[tuple[Message, bytes]] = []
        while True:
            if self._head is None:
                cut = self._buffer.find(b"\n")
                if cut < 0:
                    if len(self._buffer) > _MAX_LINE_BYTES:
                        raise WireError("a line without an end")
                    return found
                self._head = _message(bytes(self._buffer[:cut]))
                self._wanted = int(self._head.pop(_SIZE, 0))
                del self._buffer[: cut + 1]
            if len(self._buffer) < self._wanted:
                return found
            found.append((self._head, bytes(self._buffer[: self._wanted])))
            del self._buffer[: self._wanted]
            self._head = None


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WireError(f"this is no message: {line[:200].decode(errors='replace')!r}")
    return message
