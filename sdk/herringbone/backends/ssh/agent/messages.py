"""Messages over a pipe: a line of JSON, followed by as many bytes as the line announces. Pure."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]
# The key for the length of the payload; no message may use it for itself.
_SIZE = "bytes"
# No message of ours has a longer line, so another program writes into the pipe.
_MAX_LINE_BYTES = 64 << 20


class ProtocolError(Exception):
    """Bytes that are not a message."""


def pack(message: Message, payload: bytes = b"") -> bytes:
    """Return the bytes of a message.

    >>> pack({"ask": "facts"}), pack({"log": 1}, b"ab")
    (b'{"ask": "facts"}\\n', b'{"log": 1, "bytes": 2}\\nab')
    """
    assert _SIZE not in message
    if payload:
        message = {**message, _SIZE: len(payload)}
    return json.dumps(message).encode() + b"\n" + payload


class Unpacker:
    """Splits a stream of bytes, which arrives in pieces of any size, into messages.

    >>> unpacker = Unpacker()
    >>> unpacker.feed(b'{"log": 1, "bytes": 2}\\na'), unpacker.feed(b"b")
    ([], [({'log': 1}, b'ab')])
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        # A message whose line is complete and whose payload is not.
        self._head: Message | None = None
        self._payload_bytes = 0

    def feed(self, chunk: bytes) -> list[tuple[Message, bytes]]:
        """Return the messages that are complete now. Raises `ProtocolError`."""
        self._buffer += chunk
        messages: list[tuple[Message, bytes]] = []
        while True:
            if self._head is None:
                line_end = self._buffer.find(b"\n")
                if line_end < 0:
                    if len(self._buffer) > _MAX_LINE_BYTES:
                        raise ProtocolError("a line without an end")
                    return messages
                self._head = _parse(bytes(self._buffer[:line_end]))
                self._payload_bytes = int(self._head.pop(_SIZE, 0))
                del self._buffer[: line_end + 1]
            if len(self._buffer) < self._payload_bytes:
                return messages
            messages.append((self._head, bytes(self._buffer[: self._payload_bytes])))
            del self._buffer[: self._payload_bytes]
            self._head = None


def _parse(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ProtocolError(f"this is not a message: {line[:200].decode(errors='replace')!r}")
    return message
