"""Receive the body of a request: to a file, checked, or as a short text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import IO

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from herringbone.s3.front.chunks import CHUNKED, BodyCheck, Decoder
from herringbone.s3.front.refusals import S3Error, Signer

# Pieces of the server are small; a thread is asked once for so much.
_WRITE_BYTES = 1 << 20
# A client that sends nothing for so long would otherwise hold its connection for ever.
SILENCE_SECONDS = 60.0


async def receive_file(request: Request, signer: Signer, file: IO[bytes]) -> str:
    """Write the content of a body into a file and return its MD5 in hex.

    Raises `S3Error` for a body that is not what the request says, and for a full disk. The file is the caller's to keep
    or to remove.
    """
    check = BodyCheck(dict(request.headers))

    def write(data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise S3Error("InsufficientStorage", f"The server cannot store it: {error.strerror}.", 507) from None
        check.update(data)

    trailers: dict[str, str] = {}
    async for data in _pieces(request, signer, trailers):
        # In a thread: sums and the disk must not keep the server from other requests.
        await run_in_threadpool(write, data)
    return check.finish(trailers).hex()


async def receive_text(request: Request, signer: Signer, limit: int) -> bytes:
    """Return a short body. Raises `S3Error` for one with more than `limit` bytes."""
    check, text = BodyCheck(dict(request.headers)), b""
    trailers: dict[str, str] = {}
    async for data in _pieces(request, signer, trailers):
        text += data
        check.update(data)
        if len(text) > limit:
            raise S3Error("MaxMessageLengthExceeded", "Your request was too large.")
    check.finish(trailers)
    return text


async def _pieces(request: Request, signer: Signer, trailers: dict[str, str]) -> AsyncIterator[bytes]:
    """Yield the content of a body in pieces of about a megabyte; `trailers` are filled in at its end."""
    kind = request.headers.get("x-amz-content-sha256", "")
    if kind.startswith("STREAMING-") and kind not in CHUNKED:
        raise S3Error("NotImplemented", f"This server reads no body of {kind}.", 501)
    decoder = Decoder(kind, signer) if kind in CHUNKED else None
    held: list[bytes] = []
    size = 0
    async for piece in _heard(request):
        for data in [piece] if decoder is None else decoder.feed(piece):
            held.append(data)
            size += len(data)
        if size >= _WRITE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if decoder is not None:
        trailers.update(decoder.finish())
    if held:
        yield b"".join(held)


async def _heard(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of a body as they arrive. Raises `S3Error` when none does for a minute."""
    pieces = request.stream()
    while True:
        try:
            yield await asyncio.wait_for(pieces.__anext__(), SILENCE_SECONDS)
        except StopAsyncIteration:
            return
        except (asyncio.TimeoutError, TimeoutError):
            raise S3Error("RequestTimeout", f"The body stopped for {SILENCE_SECONDS:.0f} s; send it again.") from None
