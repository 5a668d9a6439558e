"""Decode bodies in the form `aws-chunked`, and check what a request says about its body. Pure.

    10000;chunk-signature=<64 hex>\\r\\n<65,536 bytes>\\r\\n ... 0;chunk-signature=...\\r\\n
    x-amz-checksum-crc32:...\\r\\n
    x-amz-trailer-signature:...\\r\\n\\r\\n

Source: "Signature calculations for the Authorization header: transferring payload in multiple chunks" and "including
trailing headers" of the S3 API reference.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from herringbone.s3.front.refusals import S3Error, Signer

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
CHUNKED = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)
_MAX_LINE_BYTES = 4_096
_MAX_CHUNK_BYTES = 1 << 30
_EMPTY = hashlib.sha256(b"").hexdigest()
_CHECKSUM = "x-amz-checksum-"
# Bytes of the checksums that need the package `awscrt`.
_OF_CRT = {"crc32c": 4, "crc64nvme": 8}
_NO_CHECKSUMS = (f"{_CHECKSUM}type", f"{_CHECKSUM}algorithm", f"{_CHECKSUM}mode")


class Decoder:
    """Takes the pieces of a body as they come, and yields the content; `trailers` are there after the end.

    >>> decoder = Decoder(UNSIGNED_TRAILER, Signer("me"))
    >>> b"".join(decoder.feed(b"3\\r\\nabc\\r\\n0\\r\\nx-amz-checksum-crc32:NSRBwg==\\r\\n\\r\\n")), decoder.finish()
    (b'abc', {'x-amz-checksum-crc32': 'NSRBwg=='})

    Content is yielded before its chunk's signature is known, so nothing may use it before `finish`. Raises `S3Error`.
    """

    def __init__(self, kind: str, signer: Signer) -> None:
        self._signer, self._is_signed = signer, kind != UNSIGNED_TRAILER
        self._has_trailer = kind != SIGNED
        # The bytes before `_read` have been used. It is cut off once for each piece: a cut copies the rest.
        self._buffer, self._read = b"", 0
        # "size": a chunk's first line; "data"; "end": the end of its last line; "trailer"; "over".
        self._state = "size"
        self._left = 0
        self._expected = ""
        self._previous = signer.signature
        self._sha256 = hashlib.sha256()
        self._trailers: dict[str, str] = {}

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the content in this piece of the body."""
        self._buffer, self._read = self._buffer[self._read :] + piece, 0
        while True:
            if self._state == "data":
                data = self._buffer[self._read : self._read + self._left]
                self._read += len(data)
                self._left -= len(data)
                if data:
                    if self._is_signed:
                        self._sha256.update(data)
                    yield data
                if self._left:
                    return
                self._state = "end"
            elif self._state == "over":
                if self._read < len(self._buffer):
                    raise _malformed("there are bytes behind its end")
                return
            elif (line := self._line()) is None:
                return
            else:
                self._take(line)

    def finish(self) -> Mapping[str, str]:
        """Return the trailers. Raises `S3Error` for a body that was cut."""
        # Without trailers, some clients leave out the empty line at the end.
        if self._state != "over" and not (
            self._state == "trailer" and self._read == len(self._buffer) and not self._has_trailer
        ):
            raise S3Error("IncompleteBody", "The body ends before its last chunk.")
        return self._trailers

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", self._read, self._read + _MAX_LINE_BYTES + 2)
        if end < 0:
            if len(self._buffer) - self._read > _MAX_LINE_BYTES:
                raise _malformed("a line is too long")
            return None
        line, self._read = self._buffer[self._read : end], end + 2
        return line

    def _take(self, line: bytes) -> None:
        if self._state == "size":
            self._begin(line)
        elif self._state == "end":
            if line:
                raise _malformed("a chunk is longer than it says")
            self._check_chunk()
            self._state = "size"
        elif line:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or len(self._trailers) > 16:
                raise _malformed("a trailer is no header")
            self._trailers[name.strip().lower()] = value.strip()
        else:
            self._check_trailers()
            self._state = "over"

    def _begin(self, line: bytes) -> None:
        size, _, extension = line.decode("latin-1").partition(";")
        try:
            if not size or size.strip() != size or size[0] in "+-" or "_" in size:
                raise ValueError
            self._left = int(size, 16)
        except ValueError:
            raise _malformed("a chunk begins without its size") from None
        if self._left > _MAX_CHUNK_BYTES:
            raise _malformed("a chunk is too large")
        name, _, self._expected = extension.strip().partition("=")
        if self._is_signed and name != "chunk-signature":
            raise _malformed("a chunk has no signature")
        self._sha256 = hashlib.sha256()
        if self._left:
            self._state = "data"
        else:
            self._check_chunk()
            self._state = "trailer"

    def _check_chunk(self) -> None:
        if self._is_signed:
            text = ("AWS4-HMAC-SHA256-PAYLOAD", *self._scope(), _EMPTY, self._sha256.hexdigest())
            self._check("\n".join(text), self._expected)

    def _check_trailers(self) -> None:
        if not self._is_signed or not self._has_trailer:
            return
        expected = self._trailers.pop("x-amz-trailer-signature", "")
        signed = "".join(f"{name}:{value}\n" for name, value in self._trailers.items())
        digest = hashlib.sha256(signed.encode("latin-1")).hexdigest()
        self._check("\n".join(("AWS4-HMAC-SHA256-TRAILER", *self._scope(), digest)), expected)

    def _scope(self) -> tuple[str, str, str]:
        return self._signer.stamp, self._signer.scope, self._previous

    def _check(self, text: str, signature: str) -> None:
        right = hmac.new(self._signer.key, text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right.encode(), signature.encode("latin-1", "replace")):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk of the body does not match.", 403)
        self._previous = right


class Checksum:
    """A checksum that a function continues from its last value, with the interface of hashlib."""

    def __init__(self, function: Callable[[bytes, int], int], num_bytes: int) -> None:
        self._function, self._num_bytes, self._value = function, num_bytes, 0

    def update(self, data: bytes) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._num_bytes, "big")


def checksum_of(name: str) -> Any:
    """Return an object that computes a checksum of S3's headers; None for one that this Python cannot compute.

    >>> checksum_of("crc32").digest()
    b'\\x00\\x00\\x00\\x00'

    crc32c and crc64nvme need `awscrt`: in Python they take a minute for a gigabyte. A body with one of these alone is
    checked by its length and by the signatures of the request.
    """
    if name in ("sha1", "sha256"):
        return hashlib.new(name, usedforsecurity=False)
    if name == "crc32":
        return Checksum(zlib.crc32, 4)
    try:
        # By name: it is no dependency, and other packages of AWS's bring it.
        function = getattr(import_module("awscrt.checksums"), name, None)
    except ImportError:
        return None
    return None if function is None or name not in _OF_CRT else Checksum(function, _OF_CRT[name])


class BodyCheck:
    """Checks of all that a request says about its content: length, MD5, SHA-256, checksums; in headers or trailers.

    >>> check = BodyCheck({"x-amz-content-sha256": "UNSIGNED-PAYLOAD", "content-md5": "kAFQmDzST7DWlj99KOF/cg=="})
    >>> check.update(b"abc"); check.finish({}).hex()
    '900150983cd24fb0d6963f7d28e17f72'
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256() if len(headers.get("x-amz-content-sha256", "")) == 64 else None
        named = [name for name in headers if name.startswith(_CHECKSUM) and name not in _NO_CHECKSUMS]
        named += [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",") if name.strip()]
        self._checksums = {name: checksum_of(name.removeprefix(_CHECKSUM)) for name in named}
        self.num_bytes = 0

    def update(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self._md5.update(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        for checksum in self._checksums.values():
            if checksum is not None:
                checksum.update(data)

    def finish(self, trailers: Mapping[str, str]) -> bytes:
        """Return the MD5 of the content. Raises `S3Error` where something that the request says is not so."""
        said = self._headers.get("x-amz-decoded-content-length", self._headers.get("content-length"))
        if said is not None and said != str(self.num_bytes):
            raise S3Error("IncompleteBody", f"The body has {self.num_bytes} bytes, and {said} were announced.")
        if self._sha256 is not None and self._sha256.hexdigest() != self._headers["x-amz-content-sha256"].lower():
            raise S3Error("XAmzContentSHA256Mismatch", "The body's SHA-256 is not the one that was signed.")
        if (text := self._headers.get("content-md5")) is not None and _decoded(text) != self._md5.digest():
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.")
        for name, checksum in self._checksums.items():
            text = {**self._headers, **trailers}.get(name)
            if text is None:
                raise S3Error("MalformedTrailerError", f"The body has no trailer {name}.")
            if checksum is not None and _decoded(text) != checksum.digest():
                raise S3Error("BadDigest", f"The {name} you specified did not match what we received.")
        return self._md5.digest()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise S3Error("InvalidDigest", "A checksum is no base64.") from None


def _malformed(why: str) -> S3Error:
    return S3Error("InvalidRequest", f"The chunked body is malformed: {why}.")
