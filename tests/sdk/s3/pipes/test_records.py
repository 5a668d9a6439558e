"""The pure parts of Pipe mode: records, gzip, the order of epochs, lines of manifests."""

from __future__ import annotations

import gzip
import json
import struct

import pytest

from herringbone.s3.pipes.records import attributes_of, epoch_order, parse_lines, record, unzipped
from herringbone_contract.errors import InputError

MAGIC = struct.pack("<I", 0xCED7230A)


def records(stream: bytes) -> list[bytes]:
    """Read records as MXNet's reader does: parts are joined by the magic that the writer took out."""
    contents, parts, position = [], [], 0
    while position < len(stream):
        magic, word = struct.unpack_from("<II", stream, position)
        assert magic == 0xCED7230A
        kind, length = word >> 29, word & ((1 << 29) - 1)
        parts.append(stream[position + 8 : position + 8 + length])
        position += 8 + (length + 3) // 4 * 4
        if kind in (0, 3):
            contents.append(MAGIC.join(parts))
            parts = []
    assert not parts
    return contents


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a",
        b"abcd",
        b"abcde",
        MAGIC,
        MAGIC * 3,
        b"ab" + MAGIC,
        b"abcd" + MAGIC + b"xy",
        b"abcd" + MAGIC,
        b"x" * 99,
    ],
)
def test_a_record_is_read_back(content: bytes) -> None:
    stream = b"".join((*record(content), *record(b"next")))
    assert records(stream) == [content, b"next"]
    # A reader that looks for the next record at multiples of four bytes must not find one inside.
    assert len(stream) % 4 == 0


def test_a_record_has_a_limit() -> None:
    with pytest.raises(InputError, match=r"s3://b/x: a RecordIO record has at most 3 bytes, and this has 4"):
        list(record(b"abcd", "s3://b/x", most_bytes=3))


def test_gzip_of_several_members_is_unpacked() -> None:
    packed = gzip.compress(b"a" * 100_000) + gzip.compress(b"b")
    pieces = [packed[begin : begin + 7] for begin in range(0, len(packed), 7)]
    assert b"".join(unzipped(pieces)) == b"a" * 100_000 + b"b"
    with pytest.raises(InputError, match="cut off"):
        list(unzipped([packed[:-5]]))
    with pytest.raises(InputError, match="not in the form of gzip"):
        list(unzipped([b"plain text"], "a.csv"))


def test_hosts_share_each_epoch() -> None:
    for seed in (None, 3):
        for epoch in range(3):
            shares = [epoch_order(11, epoch, seed=seed, host=host, hosts=3) for host in range(3)]
            assert sorted(position for share in shares for position in share) == list(range(11))
    # Files move between hosts from epoch to epoch, and the same seed gives the same order again.
    first, second = (epoch_order(11, epoch, seed=3, host=0, hosts=3) for epoch in (0, 1))
    assert set(first) != set(second)
    assert epoch_order(11, 1, seed=3, host=0, hosts=3) == second


def test_attributes_come_in_the_order_of_their_names() -> None:
    text = (
        b'{"label": {"a": 1}, "source-ref": "s3://b/1.jpg", "x": 1}\n\n{"source-ref": "s3://b/2.jpg", "label": "cat"}\n'
    )
    lines = parse_lines(text, ("source-ref", "label"), "s3://b/m")
    assert [attributes_of(line) for line in lines] == [
        [("s3://b/1.jpg", b""), (None, json.dumps({"a": 1}).encode())],
        [("s3://b/2.jpg", b""), (None, b"cat")],
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[]", "line 1: .* and this is none"),
        (b"{", "line 1: a line of an augmented manifest is one JSON object"),
        (b'{"a": 1}', "line 1: it has no attribute 'source-ref', which attribute_names lists; it has: a"),
        (b'{"source-ref": "/etc/passwd"}', "must be an s3:// address"),
        (b'{"source-ref": 3}', "must be an s3:// address"),
        (b"", "has no line"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(line: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_lines(line, ("source-ref",), "s3://b/m")
