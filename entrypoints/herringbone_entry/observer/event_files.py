"""Scalars in TensorBoard's event files: the framing of records, and the few fields of `Event` that hold a scalar. Pure.

    record   length (8 bytes), its checksum (4), an `Event` of that length, its checksum (4); little-endian
    Event    1 wall_time double, 2 step, 5 Summary { 1 Value { 1 tag, 2 simple_value float, 8 tensor, 9 metadata } }

Sources: `tensorflow/core/lib/io/record_writer.h`, and `event.proto`, `summary.proto`, `tensor.proto` of TensorFlow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

# A record of scalars has about 100 bytes; longer ones hold images, graphs and histograms, and are skipped.
MAX_RECORD_BYTES = 65_536
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
# Tags of one file whose kind is remembered.
_MAX_TAGS = 1000
_SCALARS = "scalars"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# TensorFlow's numbers of element types: the format of one element, and the field of single values.
_DTYPES = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10)}

_CRC_TABLE = []
for _byte in range(256):
    _remainder = _byte
    for _ in range(8):
        _remainder = (_remainder >> 1) ^ (0x82F63B78 if _remainder & 1 else 0)
    _CRC_TABLE.append(_remainder)


class Scalar(NamedTuple):
    """One value of a tag; `time` is in seconds since 1970."""

    time: float
    tag: str
    value: float
    step: int


class DamagedError(Exception):
    """The framing of a file is wrong, so nothing after it can be found."""


class EventParser:
    """Takes the bytes of one file as they come, and returns the scalars of complete records.

    >>> parser = EventParser()
    >>> parser.feed(b"")
    []

    Raises `DamagedError` when the length of a record is damaged. A record with a damaged content is left out.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        # Bytes of a long record that are still to be dropped.
        self._skip = 0
        # True for tags whose values are scalars: writers name a tag's kind with its first value only.
        self._tags: dict[str, bool] = {}

    def feed(self, data: bytes) -> list[Scalar]:
        """Take more of the file."""
        self._buffer += data
        scalars: list[Scalar] = []
        begin = 0
        while True:
            if self._skip:
                dropped = min(self._skip, len(self._buffer) - begin)
                begin, self._skip = begin + dropped, self._skip - dropped
            if self._skip or len(self._buffer) - begin < _HEADER.size:
                break
            length, checksum = _HEADER.unpack_from(self._buffer, begin)
            if masked_crc(self._buffer[begin : begin + 8]) != checksum:
                raise DamagedError("the length of a record has another checksum")
            if length > MAX_RECORD_BYTES:
                self._skip = _HEADER.size + length + _FOOTER_BYTES
                continue
            end = begin + _HEADER.size + length
            if len(self._buffer) < end + _FOOTER_BYTES:
                break
            record = bytes(self._buffer[begin + _HEADER.size : end])
            if struct.unpack_from("<I", self._buffer, end)[0] == masked_crc(record):
                scalars += self._scalars(record)
            begin = end + _FOOTER_BYTES
        del self._buffer[:begin]
        return scalars

    def _scalars(self, record: bytes) -> list[Scalar]:
        try:
            time, step, summaries = 0.0, 0, []
            for number, wire, value in _fields(record):
                if (number, wire) == (1, _FIXED64):
                    (time,) = struct.unpack("<d", value)
                elif (number, wire) == (2, _VARINT):
                    step = value if value < 1 << 63 else value - (1 << 64)
                elif (number, wire) == (5, _BYTES):
                    summaries.append(value)
            found = [self._scalar(value) for summary in summaries for value in _members(summary, 1)]
        except (ValueError, struct.error):
            return []
        if not math.isfinite(time):
            return []
        return [Scalar(time, tag, value, step) for tag, value in filter(None, found)]

    def _scalar(self, data: bytes) -> tuple[str, float] | None:
        tag, plugin, value = "", "", None
        tensor = None
        for number, wire, content in _fields(data):
            if (number, wire) == (1, _BYTES):
                tag = content.decode("utf-8", "replace")
            elif (number, wire) == (2, _FIXED32):
                (value,) = struct.unpack("<f", content)
            elif (number, wire) == (8, _BYTES):
                tensor = content
            elif (number, wire) == (9, _BYTES):
                names = [name for kind in _members(content, 1) for name in _members(kind, 1)]
                plugin = names[0].decode("utf-8", "replace") if names else ""
        if plugin and len(self._tags) < _MAX_TAGS:
            self._tags[tag] = plugin == _SCALARS
        if value is None and tensor is not None and self._tags.get(tag, False):
            value = _element(tensor)
        return None if value is None or not tag else (tag, value)


def masked_crc(data: bytes | bytearray) -> int:
    """Return the checksum of a record: CRC-32C, rotated and shifted.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _element(tensor: bytes) -> float | None:
    """Return the one number of a tensor, None for a tensor of another kind."""
    fields = [(number, value) for number, _, value in _fields(tensor)]
    dtype = next((value for number, value in fields if number == 1), 0)
    if not isinstance(dtype, int) or dtype not in _DTYPES:
        return None
    form, single = _DTYPES[dtype]
    for number, value in fields:
        if number == 4 and isinstance(value, bytes):
            return float(struct.unpack(form, value)[0])
        if number == single:
            if isinstance(value, int):
                return float(value if value < 1 << 63 else value - (1 << 64))
            # Packed values of a varying length are integers.
            return float(_varint(value, 0)[0] if form in ("<i", "<q") else struct.unpack(form, value)[0])
    # An element that is zero is not written.
    return 0.0


def _members(data: bytes, wanted: int) -> Iterator[bytes]:
    for number, wire, value in _fields(data):
        if (number, wire) == (wanted, _BYTES):
            yield value


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an integer for _VARINT, else bytes. Raises `ValueError`."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire = key & 7
        if wire == _VARINT:
            value: Any
            value, position = _varint(data, position)
        else:
            if wire == _BYTES:
                size, position = _varint(data, position)
            elif wire in (_FIXED32, _FIXED64):
                size = 4 if wire == _FIXED32 else 8
            else:
                raise ValueError("a field of a kind that is no longer used")
            value, position = data[position : position + size], position + size
            if position > len(data):
                raise ValueError("a field is cut")
        yield key >> 3, wire, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("a number is cut")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ValueError("a number has more than 64 bits")
