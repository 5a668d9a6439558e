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

from herringbone_parallel.reduce.elements import Element

# Increase it with every change of this header, of the handshake or of the order of chunks: two ends must agree on them.
VERSION = 4
# Little-endian and without padding; `x` is the byte that is always 0.
LAYOUT = struct.Struct("<BBBxIQQIf")
# The text of an ABORT comes from the network, so its length is bounded.
MAX_REASON_BYTES = 64 << 10
_SIXTEEN_BITS = (Element.FLOAT16, Element.BFLOAT16)
_CONVERTED = tuple({Element.FLOAT32, narrow} for narrow in _SIXTEEN_BITS)


class Kind(IntEnum):
    """The kinds of messages; codes are those of the native core."""

    PUSH = 1
    SUM = 2
    ALIVE = 3
    ABORT = 4
    LEAVE = 5
    LEFT = 6


def sum_element(element: Element, wire: Element) -> Element:
    """Return the type in which sums of `element`, whose chunks travel as `wire`, come back. Pure.

    >>> sum_element(Element.FLOAT16, Element.FLOAT32).name
    'FLOAT16'
    """
    return element if element in _SIXTEEN_BITS else wire


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
    divisor: float = 0.0

    def pack(self) -> bytes:
        """Return the header as bytes."""
        return LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> Header:
        """Read a header, of which nothing is checked yet; see `is_well_formed`."""
        return cls._make(LAYOUT.unpack(data))

    def is_well_formed(self, *, local: bool) -> bool:
        """Return True if some core could have sent this header: all its sizes fit each other.

        >>> Header(Kind.PUSH, 1, 1, length=4, elements=0x40000001, divisor=1).is_well_formed(local=False)
        False

        `local`: the header came from a rank of this host, whose elements are in shared memory. `native/slots.c` decides
        alike.
        """
        if self.kind == Kind.ABORT:
            return self.length <= MAX_REASON_BYTES
        if self.kind not in (Kind.PUSH, Kind.SUM):
            return self.kind in Kind._value2member_map_ and not self.length
        known = Element._value2member_map_
        if self.element not in known or self.wire not in known or not self.elements:
            return False
        element, wire = Element(self.element), Element(self.wire)
        # fp32 may travel in 16 bits, and the sum over a host of 16 bits may travel in fp32.
        if element is not wire and {element, wire} not in _CONVERTED:
            return False
        # A NaN is not greater than 0 either. Only floating point is divided.
        if not self.divisor > 0 or (not element.is_float and self.divisor != 1):
            return False
        size = (wire if self.kind == Kind.PUSH else self.sum_element).size
        return self.length == (0 if local else self.elements * size)

    @property
    def sum_element(self) -> Element:
        """The type in which the sum of a chunk comes back: the smaller one of `element` and `wire`."""
        return sum_element(Element(self.element), Element(self.wire))

    def same_chunk(self, other: Header) -> bool:
        """Return True if both headers describe the same chunk of the same buffer, which all ranks must cut alike."""
        # All fields except `kind` and `length`, which differ between a PUSH and its SUM.
        return self[1:3] + self[4:] == other[1:3] + other[4:]

    def describe(self) -> str:
        """Return the chunk in words, for error messages."""
        # The code may be garbage, if the other end is out of step.
        element = Element(self.element).name.lower() if self.element in Element._value2member_map_ else self.element
        chunk = f"buffer {self.sequence}, {self.elements} elements of {element}"
        return f"{chunk} from {self.offset} on, divisor {self.divisor:g}"
