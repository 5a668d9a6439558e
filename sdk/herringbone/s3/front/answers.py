"""Parts of answers: entries of listings, pieces of files, ranges and tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from email.utils import formatdate
from typing import IO

from anyio import CapacityLimiter, to_thread
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from herringbone.s3.front.conditions import Conditions, Facts
from herringbone.s3.front.documents import Member, document, encoded, time_text
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.uploads import MAX_PART

_PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_META = ("content-type", "cache-control", "content-disposition", "content-encoding", "content-language", "expires")
_USER_META = "x-amz-meta-"
_MAX_META_BYTES = 2_048


def xml(name: str, members: list[Member]) -> Response:
    return Response(document(name, members), media_type="application/xml")


def meta_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that an object keeps. Raises `S3Error` for more metadata than S3 takes."""
    kept = {name: value for name, value in headers.items() if name in _META or name.startswith(_USER_META)}
    if (encoding := kept.get("content-encoding")) is not None:
        # The form of the transfer, which the object does not have.
        parts = [part.strip() for part in encoding.split(",") if part.strip() != "aws-chunked"]
        kept["content-encoding"] = ",".join(parts)
    if sum(len(name) + len(value) for name, value in kept.items() if name.startswith(_USER_META)) > _MAX_META_BYTES:
        raise S3Error("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size.")
    return {name: value for name, value in kept.items() if value}


def file_response(
    method: str, headers: Headers, options: Mapping[str, str], file: IO[bytes], facts: Facts, threads: CapacityLimiter
) -> Response:
    """Return the answer to GET or HEAD; it closes the file. Raises `S3Error` for a condition that does not hold."""
    Conditions.of(headers).check_read(facts)
    sent = {
        "content-type": "binary/octet-stream",
        **facts.meta,
        "etag": f'"{facts.etag}"',
        "last-modified": formatdate(facts.modified, usegmt=True),
        "accept-ranges": "bytes",
    }
    for name, value in options.items():
        # A presigned URL may name the headers of its answer. They are signed with it.
        if name.startswith("response-") and (header := name.removeprefix("response-")) in _META:
            sent[header] = re.sub(r"[^\x20-\x7e]", "", value)
    begin, end, status = 0, facts.size, 200
    # A part of another object than the client knows would not fit: it gets the whole.
    is_known = headers.get("if-range", sent["etag"]) in (sent["etag"], sent["last-modified"])
    if is_known and (text := headers.get("range")) is not None and _RANGE.fullmatch(text) is not None:
        limits = span(text, facts.size)
        if limits is None:
            file.close()
            raise S3Error("InvalidRange", "The requested range is not satisfiable.", 416)
        begin, end = limits
        sent["content-range"] = f"bytes {begin}-{end - 1}/{facts.size}"
        status = 206
    sent["content-length"] = str(end - begin)
    if method == "HEAD":
        file.close()
        return Response(status_code=status, headers=sent)
    # The background task runs also when the client goes away.
    return StreamingResponse(
        _streamed(_pieces(file, begin, end), threads), status, sent, background=BackgroundTask(file.close)
    )


def span(text: str, size: int) -> tuple[int, int] | None:
    """Return the first byte of a range and the one behind its last; None for a range without bytes.

    >>> span("bytes=2-3", 10), span("bytes=-4", 10), span("bytes=8-", 10), span("bytes=10-", 10)
    ((2, 4), (6, 10), (8, 10), None)
    """
    match = _RANGE.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
    return (begin, end) if begin < end else None


def entry(facts: Facts, encoding: str | None) -> list[Member]:
    """Return an object as listings show it."""
    return [
        ("Key", encoded(facts.key, encoding)),
        ("LastModified", time_text(facts.modified)),
        ("ETag", f'"{facts.etag}"'),
        ("Size", facts.size),
        ("StorageClass", "STANDARD"),
    ]


def grouped(keys: Iterator[str], prefix: str, delimiter: str, after: str) -> Iterator[str]:
    """Yield keys, and once each the common prefixes that end with the delimiter, behind `after`.

    >>> list(grouped(iter(["a", "b-1", "b-2", "c"]), "", "-", ""))
    ['a', 'b-', 'c']
    """
    last = None
    for key in keys:
        head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        group = prefix + head + found if found else key
        # A page may end with a common prefix, whose keys come behind it.
        if group != last and not (found and group == after):
            yield group
        last = group


def token_of(last: str) -> str:
    """Return the token of the page behind an entry.

    >>> key_of(token_of("data/ä"))
    'data/ä'
    """
    return base64.urlsafe_b64encode(last.encode()).decode()


def key_of(token: str) -> str:
    """Return the entry of a token. Raises `S3Error` for one that is none of ours."""
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect.") from None


def number_of(text: str, name: str) -> int:
    """Return a number of a query. Raises `S3Error`."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise S3Error("InvalidArgument", f"Provided {name} not an integer or within integer range.")
    return int(text)


def part_number(options: Mapping[str, str]) -> int:
    number = number_of(options.get("partNumber", ""), "partNumber")
    if not 1 <= number <= MAX_PART:
        raise S3Error("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive.")
    return number


def copy_content(source: IO[bytes], target: IO[bytes], begin: int, end: int) -> str:
    """Copy the bytes of a file from `begin` to `end`, and return their MD5 in hex."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _pieces(source, begin, end):
        target.write(piece)
        digest.update(piece)
    return digest.hexdigest()


def _pieces(file: IO[bytes], begin: int, end: int) -> Iterator[bytes]:
    file.seek(begin)
    while begin < end and (piece := file.read(min(_PIECE_BYTES, end - begin))):
        begin += len(piece)
        yield piece


async def _streamed(pieces: Iterator[bytes], threads: CapacityLimiter) -> AsyncIterator[bytes]:
    """Yield pieces that are read in threads of the caller's."""
    while piece := await to_thread.run_sync(next, pieces, b"", limiter=threads):
        yield piece
