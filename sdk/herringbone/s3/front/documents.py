"""The XML of S3's protocol, both ways. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TypeAlias
from urllib.parse import quote
from xml.etree import ElementTree

from herringbone.s3.front.refusals import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# Ten thousand parts with two checksums each have less.
MAX_BYTES = 4 << 20
# Characters that XML 1.0 cannot have, however they are written.
_NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
Member: TypeAlias = "tuple[str, str | int | bool | Sequence[Member]]"


def document(name: str, members: Iterable[Member], *, namespace: str = NAMESPACE) -> bytes:
    """Return a document as bytes; a member's value is a text or a list of members.

    >>> document("Error", [("Code", "NoSuchKey"), ("Resource", "/a&b")], namespace="")[39:]
    b'<Error><Code>NoSuchKey</Code><Resource>/a&amp;b</Resource></Error>'
    """
    root = ElementTree.Element(name, {"xmlns": namespace} if namespace else {})
    _fill(root, members)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root)


def error_document(code: str, message: str, request_id: str) -> bytes:
    """Return an error as S3's clients read it."""
    return document("Error", [("Code", code), ("Message", message), ("RequestId", request_id)], namespace="")


def _fill(element: ElementTree.Element, members: Iterable[Member]) -> None:
    for name, value in members:
        child = ElementTree.SubElement(element, name)
        if isinstance(value, (list, tuple)):
            _fill(child, value)
        elif isinstance(value, bool):
            child.text = "true" if value else "false"
        else:
            child.text = _NO_XML.sub("\ufffd", str(value))


def encoded(text: str, encoding: str | None) -> str:
    """Return a key as the client asked for it: with `encoding-type=url`, keys may have any character.

    >>> encoded("a b/\\x01", "url"), encoded("a b", None)
    ('a%20b/%01', 'a b')
    """
    return quote(text, safe="/") if encoding == "url" else text


def time_text(seconds: float) -> str:
    """Return a time as S3 writes it.

    >>> time_text(0.5)
    '1970-01-01T00:00:00.500Z'
    """
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def parse_parts(text: bytes) -> list[tuple[int, str]]:
    """Return number and ETag of the parts of a CompleteMultipartUpload. Raises `S3Error`.

    >>> parse_parts(b'<C><Part><ETag>"0a"</ETag><PartNumber>1</PartNumber></Part></C>')
    [(1, '0a')]
    """
    parts = []
    for part in _children(_parse(text), "Part"):
        number, etag = _text(part, "PartNumber"), _text(part, "ETag")
        if not number.isascii() or not number.isdigit() or len(number) > 6:
            raise _malformed()
        parts.append((int(number), etag.strip('"')))
    return parts


def parse_deletion(text: bytes) -> tuple[list[tuple[str, str]], bool]:
    """Return the keys of a DeleteObjects, each with the ETag that it must have, and whether only errors are answered.

    Raises `S3Error`.
    """
    root = _parse(text)
    objects = _children(root, "Object")
    for item in objects:
        _check_members(item, "Key", "ETag")
    keys = [(_text(item, "Key"), next((child.text or "" for child in _children(item, "ETag")), "")) for item in objects]
    if not 0 < len(keys) <= 1000:
        raise _malformed()
    return keys, any(item.text == "true" for item in _children(root, "Quiet"))


def check_bucket(text: bytes) -> None:
    """Raise `S3Error` for a CreateBucket that asks for more than a region, which a folder does not have."""
    if text:
        _check_members(_parse(text), "LocationConstraint")


def _check_members(element: ElementTree.Element, *known: str) -> None:
    for child in element:
        if (name := child.tag.rpartition("}")[2]) not in known:
            raise S3Error("NotImplemented", f"This server has no {name} in this request.", 501)


def _parse(text: bytes) -> ElementTree.Element:
    try:
        # Clients send UTF-8. In other encodings, which the parser knows as well, the words below are other bytes;
        # UTF-16 without a mark is valid UTF-8 with zeros.
        content = text.decode("utf-8-sig")
        # No request of S3 has a document type, and entities are its only use.
        if "\0" in content or "<!DOCTYPE" in content or "<!ENTITY" in content:
            raise _malformed()
        return ElementTree.fromstring(content)  # noqa: S314 - without entities, see above
    except (ElementTree.ParseError, ValueError, LookupError):
        raise _malformed() from None


def _children(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [child for child in element if child.tag.rpartition("}")[2] == name]


def _text(element: ElementTree.Element, name: str) -> str:
    children = _children(element, name)
    if not children or not children[0].text:
        raise _malformed()
    return children[0].text


def _malformed() -> S3Error:
    return S3Error("MalformedXML", "The XML you provided was not well-formed or did not validate.")
