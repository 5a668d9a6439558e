"""Receive the body of a request: to a file, checked, or as a short text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import IO

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from herringbone.s3.front.chunks import CHUNKED, BodyCheck, Decoder
from herringbone.s3.front.refusals import S3Error, Signer

# Pieces of the server are small; a thread is asked once for so much.
_BLOCK_BYTES = 1 << 20
# A client that sends nothing for so long would otherwise hold its connection for ever.
SILENCE_SECONDS = 60.0


async def receive_file(request: Request, signer: Signer, file: IO[bytes], threads: CapacityLimiter) -> str:
    """Write the content of a body into a file and return its MD5 in hex.

    Raises `S3Error` for a body that is not what the request says, and for a full disk. The file is the caller's to keep
    or to remove.
    """

    def write(data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise S3Error("InsufficientStorage", f"The server cannot store it: {error.strerror}.", 507) from None

    return (await _receive(request, signer, write, threads)).hex()


async def receive_text(request: Request, signer: Signer, limit: int, threads: CapacityLimiter) -> bytes:
    """Return a short body. Raises `S3Error` for one with more than `limit` bytes."""
    text = bytearray()

    def keep(data: bytes) -> None:
        text.extend(data)
        if len(text) > limit:
            raise S3Error("MaxMessageLengthExceeded", "Your request was too large.")

    await _receive(request, signer, keep, threads)
    return bytes(text)


async def _receive(request: Request, signer: Signer, keep: Callable[[bytes], None], threads: CapacityLimiter) -> bytes:
    """Pass the content of a body to `keep`, and return its MD5."""
    kind = request.headers.get("x-amz-content-sha256", "")
    if kind.startswith("STREAMING-") and kind not in CHUNKED:
        raise S3Error("NotImplemented", f"This server reads no body of {kind}.", 501)
    check, decoder = BodyCheck(dict(request.headers)), Decoder(kind, signer) if kind in CHUNKED else None

    def take(block: bytes) -> None:
        # Chunks may be of one byte: together they are one write.
        data = block if decoder is None else b"".join(decoder.feed(block))
        keep(data)
        check.update(data)

    block = bytearray()
    async for piece in _heard(request):
        block += piece
        if len(block) >= _BLOCK_BYTES:
            # In a thread of the caller's: chunks, sums and the disk must not keep the server from other requests.
            await to_thread.run_sync(take, bytes(block), limiter=threads)
            block.clear()
    await to_thread.run_sync(take, bytes(block), limiter=threads)
    return check.finish({} if decoder is None else decoder.finish())


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
