"""The messages between ranks and servers: a header of 32 bytes, little-endian, then `length` bytes.

    0      1         2      3   4        8          16       24      28         32
    kind   element   wire   0   length   sequence   offset   elements  divisor

A PUSH is a chunk on its way to who sums it; the SUM that comes back has the same header, and is the credit to push
more. Between ranks of one host the elements lie in shared memory and `length` is 0. ALIVE is sent by each I/O thread,
whatever its process computes. ABORT carries the reason as UTF-8. LEAVE says that its sender has taken part in
`sequence` buffers and will in no more; LEFT answers it, so that nobody closes a connection with bytes under way.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.elements import Element

# Changes with everything that two ends must agree on: this header, the handshake, the order of chunks.
VERSION = 3
LAYOUT = struct.Struct("<BBBxIQQII")


class Kind(IntEnum):
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

    `element` and `wire` are codes of `Element`, of the buffer and of the bytes that travel; `elements` of them from
    `offset` of the buffer's on; sums are divided by `divisor`.
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
        return LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> Header:
        """Read a header; raises `ParallelError` for a kind that no version has."""
        header = cls._make(LAYOUT.unpack(data))
        if header.kind not in Kind._value2member_map_:
            raise ParallelError(f"a message of kind {header.kind}: the connection is out of step")
        return header

    def same_chunk(self, other: Header) -> bool:
        """Whether both are of the same chunk of the same buffer, as all ranks must have cut it."""
        return self[1:3] + self[4:] == other[1:3] + other[4:]

    def describe(self) -> str:
        element = Element(self.element).name.lower() if self.element in Element._value2member_map_ else self.element
        where = f"buffer {self.sequence}, {self.elements} elements of {element}"
        return f"{where} from {self.offset} on, divisor {self.divisor}"
