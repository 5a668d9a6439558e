"""The error of S3's protocol, the request as its verifier sees it, and the call as an audit sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class S3Error(Exception):
    """An answer that is an error: S3's code, a message, and the status of HTTP."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The parts of a request that a signature covers; `path` and `query` are as the client sent them.

    `headers` are pairs in the order of the request, names in lower case.
    """

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]

    @classmethod
    def of_scope(cls, scope: Mapping[str, Any]) -> HttpRequest:
        """Return the request of an ASGI scope."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        path = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
        return cls(scope["method"], path.decode("latin-1"), scope["query_string"].decode("latin-1"), headers)

    def header(self, name: str) -> str:
        """Return the value of a header; "" without it, and all values with commas where it stands several times."""
        return ",".join(" ".join(value.split()) for key, value in self.headers if key == name)


class Signer(NamedTuple):
    """The signer of a request, and the values from which the signatures of chunks continue.

    `key` is the signing key of the day, `scope` is `DAY/REGION/s3/aws4_request`, `stamp` the time that was signed.
    With `repeats`, the same signed write has come before: it may change nothing any more.
    """

    identity: str
    key: bytes = b""
    scope: str = ""
    stamp: str = ""
    signature: str = ""
    repeats: bool = False

    def check_repeat(self, *, changes: bool) -> None:
        """Raise `S3Error` for a repeated write that would change something.

        Somebody may have recorded it. But a client signs two equal writes of one second alike, and the second one has
        no effect while nobody else has written.
        """
        if self.repeats and changes:
            raise S3Error("SlowDown", "This signed request was received before. Sign it again.", 503)


# Raises `S3Error` for a request that may not go on. It sees no body: what it says about one is checked here.
Verifier = Callable[[HttpRequest], Signer]


class Outcome(NamedTuple):
    """One answered call. `identity` is "" for a request that the verifier has refused, `code` for one without error.

    `operation` is named as in S3's server access logs, `REST.PUT.OBJECT`.
    """

    request_id: str
    client: str
    identity: str
    operation: str
    path: str
    status: int
    code: str = ""
