"""The bytes and the order of a channel in Pipe mode: RecordIO, gzip, shuffled epochs, lines of a manifest. Pure.

A record of RecordIO, as MXNet's libraries read it (little-endian):

    magic 0xced7230a | 3 bits: part of the record, 29 bits: length | content | zeros up to a multiple of 4 bytes

Content that contains the magic at a multiple of 4 bytes is cut there, and the reader puts it back between the parts.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from herringbone.aws.location import is_s3
from herringbone.plan.inputs import share
from herringbone_contract.errors import InputError
from herringbone_contract.masking import printable

# The length of a record has 29 bits.
MAX_RECORD_BYTES = (1 << 29) - 1
_MAGIC = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LENGTH_BITS = 29
_GZIP = 31
# An expansion of 1000 to 1 is the most that gzip reaches, so a step makes at most 64 MB.
_GZIP_STEP = 1 << 16


class Attribute(NamedTuple):
    """The value of one attribute: an `address` whose content is sent, or the `content` itself."""

    address: str | None
    content: bytes


def record(content: bytes, name: str = "", *, most_bytes: int = MAX_RECORD_BYTES) -> Iterator[bytes]:
    """Yield the pieces of one RecordIO record.

    >>> b"".join(record(b"abcde")).hex(" ", 4)
    '0a23d7ce 05000000 61626364 65000000'

    Raises `InputError` for content that is too long for a record; `name` is its name in the message.
    """
    if len(content) > most_bytes:
        raise InputError(
            f"{printable(name)}: a RecordIO record has at most {most_bytes} bytes, and this has {len(content)}; "
            "divide it, or leave record_wrapping out"
        )
    begin = 0
    for end in _marks(content):
        yield _header(_FIRST if begin == 0 else _MIDDLE, end - begin)
        yield content[begin:end]
        begin = end + len(_MAGIC)
    yield _header(_LAST if begin else _WHOLE, len(content) - begin)
    yield content[begin:]
    # The parts before the last one end at a multiple of 4 bytes already.
    yield bytes(-(len(content) - begin) % 4)


def unzipped(pieces: Iterable[bytes], name: str = "") -> Iterator[bytes]:
    """Yield the content of a gzip file of one or more members, piece by piece. Raises `InputError` for other data."""
    unpacker = zlib.decompressobj(_GZIP)
    is_fresh = True
    try:
        for piece in pieces:
            for begin in range(0, len(piece), _GZIP_STEP):
                rest = piece[begin : begin + _GZIP_STEP]
                while rest:
                    if unpacker.eof:
                        unpacker = zlib.decompressobj(_GZIP)
                    is_fresh = False
                    yield unpacker.decompress(rest)
                    rest = unpacker.unused_data
    except zlib.error as error:
        raise InputError(f"{printable(name)}: it is not in the form of gzip: {error}; leave compression out") from None
    if not unpacker.eof and not is_fresh:
        raise InputError(f"{printable(name)}: the gzip file is cut off; write it again")


def epoch_order(count: int, epoch: int, *, seed: int | None, host: int, hosts: int) -> list[int]:
    """Return the positions of the parts that one of `hosts` hosts reads in an epoch, in their order.

    >>> epoch_order(5, 0, seed=None, host=1, hosts=2)
    [1, 3]
    >>> epoch_order(5, 0, seed=7, host=0, hosts=1) == epoch_order(5, 1, seed=7, host=0, hosts=1)
    False

    With a seed, each epoch has another order, which is shared between the hosts afterwards. So a host gets other parts
    in each epoch, and all hosts together get each part once.
    """
    positions = list(range(count))
    if seed is not None:
        random.Random(f"{seed}-{epoch}").shuffle(positions)  # noqa: S311 - an order, and no secret
    return share(positions, host=host, hosts=hosts)


def parse_lines(text: bytes, attributes: Sequence[str], address: str) -> list[dict[str, Any]]:
    """Return the lines of an AugmentedManifestFile, each with the wanted attributes alone.

    >>> parse_lines(b'{"source-ref": "s3://b/1.jpg", "label": 3, "x": 0}', ["label"], "s3://b/manifest")
    [{'label': 3}]

    Raises `InputError` for a line without one of them, and for a `-ref` attribute that is no address.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{printable(address)}, line {number}"
        try:
            members = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: a line of an augmented manifest is one JSON object: {error}") from None
        if not isinstance(members, dict):
            raise InputError(f"{where}: a line of an augmented manifest is one JSON object, and this is none")
        wanted = {}
        for name in attributes:
            if name not in members:
                known = ", ".join(printable(str(member)) for member in members) or "none"
                raise InputError(f"{where}: it has no attribute {name!r}, which attribute_names lists; it has: {known}")
            value = wanted[name] = members[name]
            if name.endswith("-ref"):
                _check_reference(value, name, where, address)
        lines.append(wanted)
    if not lines:
        raise InputError(f"{printable(address)}: the augmented manifest has no line")
    return lines


def attributes_of(line: dict[str, Any]) -> list[Attribute]:
    """Return the attributes of a line in their order; a `-ref` attribute is the content of its address.

    >>> attributes_of({"label": 3, "text": "é"})[0].content
    b'3'

    Text is sent as it is, and everything else as JSON.
    """
    return [
        Attribute(value, b"")
        if name.endswith("-ref")
        else Attribute(None, (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in line.items()
    ]


def _check_reference(value: object, name: str, where: str, address: str) -> None:
    if isinstance(value, str) and value and (is_s3(value) or (not is_s3(address) and "://" not in value)):
        return
    # A manifest of a bucket may be of others, and must not name files of this machine.
    kinds = "an s3:// address" if is_s3(address) else "an s3:// address or the path of a file"
    raise InputError(f"{where}: {name} is {printable(str(value))!r}, and must be {kinds}")


def _marks(content: bytes) -> Iterator[int]:
    position = content.find(_MAGIC)
    while position >= 0:
        if position % 4 == 0:
            yield position
        # One further: the four bytes of the magic differ from each other, so they never overlap themselves.
        position = content.find(_MAGIC, position + 1)


def _header(part: int, length: int) -> bytes:
    return _MAGIC + struct.pack("<I", part << _LENGTH_BITS | length)
