"""Verify AWS's Signature Version 4, in the Authorization header or in the query of a presigned URL. Pure.

    request  --parse-->  [1] who claims to have signed: key id, day, region, service, signed headers, signature
    key file ------->    [2] the secret of that key
             --check-->  [3] canonical request -> string to sign -> signature, compared in constant time

Source: "AWS Signature Version 4 for API requests" in AWS's IAM user guide.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import posixpath
import re
import time
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from herringbone.s3.front.refusals import HttpRequest
from herringbone.serve.errors import ApiError

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
# Clocks of clients may be off by so much; AWS allows the same: 15 minutes for S3, 5 for the others.
SKEW_SECONDS = 300
S3_SKEW_SECONDS = 900
# Headers that may come with a presigned URL without its signature: they select nothing. The body has its own checks.
_FREE_HEADERS = ("x-amz-user-agent", "x-amz-content-sha256")
# A presigned URL lives a week at most.
_MAX_EXPIRES = 604_800
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<credential>[^,\s]+),\s*SignedHeaders=(?P<headers>[^,\s]+),\s*"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)
_SPACES = re.compile(" +")
_TIME = re.compile(r"\d{8}T\d{6}Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """The parts of a signature, before anybody has checked it; `signed_at` is in seconds since 1970.

    `expires` is the life of a presigned URL in seconds, None for a signature in a header.
    """

    key_id: str
    day: str
    region: str
    service: str
    signed_at: int
    signed_headers: tuple[str, ...]
    signature: str
    expires: int | None = None

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"

    @property
    def stamp(self) -> str:
        """The time of the signature, as it was signed."""
        return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.signed_at))

    @property
    def skew_seconds(self) -> int:
        return S3_SKEW_SECONDS if self.service == "s3" else SKEW_SECONDS


def parse(request: HttpRequest) -> Claim:
    """Return the claim of a request.

    Raises `ApiError`: MissingAuthenticationToken without a signature, IncompleteSignature for one that is malformed.
    """
    if authorization := request.header("authorization"):
        match = _AUTHORIZATION.fullmatch(authorization)
        if match is None:
            raise _incomplete(f"the Authorization header is not of the form {ALGORITHM} Credential=..., ...")
        stamp = request.header("x-amz-date")
        return _claim(match["credential"], stamp, match["headers"], match["signature"], None)
    pairs = dict(_pairs(request.query))
    if pairs.get("X-Amz-Algorithm") != ALGORITHM:
        raise ApiError("MissingAuthenticationTokenException", "the request is not signed", 403)
    members = [pairs.get(f"X-Amz-{name}", "") for name in ("Credential", "Date", "SignedHeaders", "Signature")]
    expires = pairs.get("X-Amz-Expires", "")
    if not (expires.isascii() and expires.isdigit() and len(expires) <= len(str(_MAX_EXPIRES))):
        raise _incomplete("X-Amz-Expires must be a number of seconds")
    if not 0 < int(expires) <= _MAX_EXPIRES:
        raise _incomplete(f"X-Amz-Expires must be at most {_MAX_EXPIRES} seconds, a week")
    credential, stamp, headers, signature = members
    return _claim(credential, stamp, headers, signature, int(expires))


def _claim(credential: str, stamp: str, headers: str, signature: str, expires: int | None) -> Claim:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise _incomplete("Credential must be KEY/DAY/REGION/SERVICE/aws4_request")
    if _TIME.fullmatch(stamp) is None or not stamp.startswith(parts[1]):
        raise _incomplete("the request needs a date, as x-amz-date, of the day in its Credential")
    try:
        signed_at = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise _incomplete(f"x-amz-date {stamp} is no date") from None
    return Claim(parts[0], parts[1], parts[2], parts[3], signed_at, tuple(headers.split(";")), signature, expires)


def check(claim: Claim, request: HttpRequest, *, secret: str, payload_hash: str, now: float) -> bytes:
    """Check a claim, and return the signing key, with which the chunks of a streamed upload are signed, too.

    `payload_hash` is the SHA-256 of the body in hex, or the word that S3's clients write in its place. Raises
    `ApiError`.
    """
    if claim.expires is not None and claim.service != "s3":
        # Valid for up to a week, which is longer than signatures are remembered: such a call could be repeated.
        raise _incomplete(f"presigned URLs are of S3 alone; sign calls of {claim.service} in the Authorization header")
    _check_time(claim, now)
    _check_headers(claim, request)
    key = signing_key(secret, claim)
    texts = {string_to_sign(claim, request, payload_hash, as_text=as_text) for as_text in (False, True)}
    expected = [hmac.new(key, text.encode(), hashlib.sha256).hexdigest().encode() for text in texts]
    signature = claim.signature.encode("utf-8", "replace")
    if not sum(hmac.compare_digest(each, signature) for each in expected):
        raise ApiError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method.",
            403,
        )
    return key


def _check_time(claim: Claim, now: float) -> None:
    if claim.expires is None:
        if abs(now - claim.signed_at) > claim.skew_seconds:
            raise ApiError(
                "RequestExpired",
                f"Signature expired: it is {round(now - claim.signed_at)} s old by this server's clock, and at most "
                f"{claim.skew_seconds} are allowed; check the clock of your machine",
                403,
            )
    elif not claim.signed_at - claim.skew_seconds <= now <= claim.signed_at + claim.expires:
        raise ApiError("AccessDenied", "Request has expired", 403)


def _check_headers(claim: Claim, request: HttpRequest) -> None:
    signed = set(claim.signed_headers)
    # The target selects the operation, and x-amz-copy-source an object: whoever added one would change what was signed.
    free = _FREE_HEADERS if claim.expires is not None else _FREE_HEADERS[:1]
    needed = {name for name, _ in request.headers if name.startswith("x-amz-") and name not in free}
    missing = {"host", *needed} - signed
    absent = signed - {name for name, _ in request.headers}
    if missing or absent:
        raise _incomplete(f"SignedHeaders must name the headers that are sent: {', '.join(sorted(missing | absent))}")


def signing_key(secret: str, claim: Claim) -> bytes:
    """Return the key of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in (claim.day, claim.region, claim.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def string_to_sign(claim: Claim, request: HttpRequest, payload_hash: str, *, as_text: bool = False) -> str:
    """Return the text that the client has signed.

    Beyond ASCII there are two customs. Most clients sign a header's bytes as they are sent, without excess spaces. With
    `as_text`, as botocore does: it signs its text in UTF-8, without excess white space of any kind, and sends Latin-1.
    """
    values = {name: [value for key, value in request.headers if key == name] for name in claim.signed_headers}
    trimmed = (lambda value: " ".join(value.split())) if as_text else (lambda value: _SPACES.sub(" ", value).strip(" "))
    headers = "".join(f"{name}:{','.join(map(trimmed, texts))}\n" for name, texts in values.items())
    canonical = "\n".join(
        (
            request.method,
            _canonical_path(request.path, claim.service),
            _canonical_query(request.query),
            headers,
            ";".join(claim.signed_headers),
            payload_hash,
        )
    )
    digest = hashlib.sha256(canonical.encode() if as_text else canonical.encode("latin-1", "replace"))
    return "\n".join((ALGORITHM, claim.stamp, claim.scope, digest.hexdigest()))


def _canonical_path(path: str, service: str) -> str:
    # S3's clients sign each path encoded once. Others encode what they send a second time, without `.`, `..` and `//`.
    if service == "s3":
        return quote(unquote_to_bytes(path), safe="/~")
    normal = posixpath.normpath(f"/{path.lstrip('/')}")
    return quote(f"{normal}/" if path.endswith("/") and normal != "/" else normal, safe="/~")


def _canonical_query(query: str) -> str:
    parts = (part.partition("=") for part in query.split("&") if part)
    # As bytes: the query of a client may be no UTF-8.
    pairs = sorted(tuple(quote(unquote_to_bytes(text), safe="~") for text in (name, value)) for name, _, value in parts)
    return "&".join(f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature")


def _pairs(query: str) -> list[tuple[str, str]]:
    # Not parse_qsl: a "+" that a client signs stands for itself.
    pairs = (part.partition("=") for part in query.split("&") if part)
    return [(_unquoted(name), _unquoted(value)) for name, _, value in pairs]


def _unquoted(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")


def _incomplete(message: str) -> ApiError:
    return ApiError("IncompleteSignature", message, 403)
