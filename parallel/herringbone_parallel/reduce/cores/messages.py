"""The messages between ranks and servers: a header of 32 bytes, little-endian, then `length` bytes.

    0      1         2      3   4        8          16       24      28         32
    kind   element   wire   0   length   sequence   offset   elements  divisor

| kind  | meaning |
|-------|---------|
| PUSH  | a chunk for its server. Between ranks of one host the elements are in shared memory and `length` is 0 |
| SUM   | the sum of a chunk, with the header of its PUSH; it is the credit to push another chunk |
| ALIVE | a sign of life from the I/O thread, whatever its process computes |
| ABORT | the sender stops; the body is the reason, as UTF-8 |
| LEAVE | the sender has taken part in `sequence` buffers and will take part in no more |
| LEFT  | the answer to LEAVE, so that nobody closes a connection with bytes in flight |
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.elements import Element

# Increase it with every change of this header, of the handshake or of the order of chunks: two ends must agree on them.
VERSION = 3
# Little-endian and without padding; `x` is the byte that is always 0.
LAYOUT = struct.Struct("<BBBxIQQII")


class Kind(IntEnum):
    """The kinds of messages; codes are those of the native core."""

    PUSH = 1
    SUM = 2
    ALIVE = 3
    ABORT = 4
    LEAVE = 5
    LEFT = 6


class Header(NamedTuple):
    """One message's header.

    >>> Header.unpack(Header(Kind.LEAVE, sequence=7).pack()).sequence
    7

    `element` and `wire` are codes of `Element`: the type of the buffer, and of the bytes that travel. The message is
    about `elements` elements of the buffer, beginning with element `offset`. Their sum is divided by `divisor`.
    """

    kind: int
    element: int = 0
    wire: int = 0
    length: int = 0
    sequence: int = 0
    offset: int = 0
    elements: int = 0
    divisor: int = 0

    def pack(self) -> bytes:
        """Return the header as bytes."""
        return LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> Header:
        """Read a header; raises `ParallelError` for an unknown kind."""
        header = cls._make(LAYOUT.unpack(data))
        if header.kind not in Kind._value2member_map_:
            raise ParallelError(f"a message of kind {header.kind}: the connection is out of step")
        return header

    def same_chunk(self, other: Header) -> bool:
        """Return True if both headers describe the same chunk of the same buffer, which all ranks must cut alike."""
        # All fields except `kind` and `length`, which differ between a PUSH and its SUM.
        return self[1:3] + self[4:] == other[1:3] + other[4:]

    def describe(self) -> str:
        """Return the chunk in words, for error messages."""
        # The code may be garbage, if the other end is out of step.
        element = Element(self.element).name.lower() if self.element in Element._value2member_map_ else self.element
        chunk = f"buffer {self.sequence}, {self.elements} elements of {element}"
        return f"{chunk} from {self.offset} on, divisor {self.divisor}"
