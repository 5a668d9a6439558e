"""The error of S3's protocol, and the request as its verifier sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class S3Error(Exception):
    """An answer that is an error: S3's code, a message, and the status of HTTP."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class SignedRequest(NamedTuple):
    """The parts of a request that a signature covers; `path` and `query` are as the client sent them.

    `headers` are pairs in the order of the request, names in lower case.
    """

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]


class Signer(NamedTuple):
    """The signer of a request, and the values from which the signatures of chunks continue.

    `key` is the signing key of the day, `scope` is `DAY/REGION/s3/aws4_request`, `stamp` the time that was signed.
    """

    identity: str
    key: bytes = b""
    scope: str = ""
    stamp: str = ""
    signature: str = ""


# Raises `S3Error` for a request that may not go on. It sees no body: what it says about one is checked here.
Verifier = Callable[[SignedRequest], Signer]
