"""The front of S3 behind the service's keys: who signed a call of S3, how often, and what the audit says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.s3.front.app import make_app
from herringbone.s3.front.refusals import HttpRequest, Outcome, S3Error, Signer
from herringbone.serve.errors import ApiError
from herringbone.serve.signing.signature import UNSIGNED_PAYLOAD
from herringbone_contract.errors import HerringboneError, InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from herringbone.serve.app import Verifier
    from herringbone.serve.records import Audit
    from herringbone.serve.settings import Settings

# The codes of S3 for refusals that other services name differently, with their status.
_CODES = {
    "MissingAuthenticationTokenException": ("AccessDenied", 403),
    "IncompleteSignature": ("AuthorizationHeaderMalformed", 400),
    "InvalidSignatureException": ("AuthorizationHeaderMalformed", 400),
    "RequestExpired": ("RequestTimeTooSkewed", 403),
    "ThrottlingException": ("SlowDown", 503),
    "UnrecognizedClientException": ("InvalidAccessKeyId", 403),
}
# Signature Version 2, with which boto3 presigns by default in the oldest regions. It covers no headers and uses SHA-1.
_VERSION_2 = re.compile(r"(?:^|&)AWSAccessKeyId=")
_OWNERS = ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner")


def make_buckets(folder: Path, settings: Settings, verifier: Verifier, audit: Audit) -> ASGIApp:
    """Return the application that answers S3's calls for the buckets below a folder.

    >>> make_buckets(Path("/srv/buckets"), settings, verifier, audit)                  # doctest: +SKIP

    The default bucket of AWS's SDKs, `sagemaker-REGION-ACCOUNT`, is made for each region: clients that do not find it
    would create it, and ask for encryption, which a folder has not. Raises `InputError` where that fails.
    """
    for region in settings.regions:
        bucket = folder / f"sagemaker-{region}-{settings.account}"
        try:
            bucket.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"--buckets: {bucket} cannot be made: {error.strerror}") from None

    def observe(outcome: Outcome) -> None:
        audit.add(
            id=outcome.request_id,
            client=outcome.client,
            key=outcome.identity,
            service="s3",
            operation=outcome.operation,
            resource=outcome.path[:256],
            status=outcome.status,
            error=outcome.code,
        )

    return make_app(folder, signer_of(verifier, settings.account), observer=observe, new_buckets=settings.new_buckets)


def signer_of(verifier: Verifier, account: str) -> Callable[[HttpRequest], Signer]:
    """Return the front's verifier, which asks the service's: signature, rate, and the owner that the client expects.

    >>> signer_of(verifier, "000000000000")(request).identity                          # doctest: +SKIP
    'ada'

    The returned function raises `S3Error`.
    """

    def verify(request: HttpRequest) -> Signer:
        if _VERSION_2.search(request.query) or request.header("authorization").startswith("AWS "):
            raise S3Error(
                "InvalidRequest",
                "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256; with "
                'boto3, make the client with config=Config(signature_version="s3v4").',
            )
        try:
            verified = verifier(request, _payload_hash(request))
            verifier.check_rate(verified)
        except ApiError as error:
            code, status = _CODES.get(error.code, (error.code, error.status))
            raise S3Error(code, error.message, status) from None
        except HerringboneError as error:
            # The file of keys cannot be used. The message names the file and no secret.
            raise S3Error("InternalError", str(error), 500) from None
        for name in _OWNERS:
            if request.header(name) not in ("", account):
                raise S3Error("AccessDenied", f"{name}: the buckets of this service belong to {account}.", 403)
        claim = verified.claim
        # A presigned address is made to be used until it expires, also more than once.
        repeats = request.method not in ("GET", "HEAD") and claim.expires is None and not verifier.is_new(claim)
        return Signer(verified.key.name, verified.signing_key, claim.scope, claim.stamp, claim.signature, repeats)

    return verify


def _payload_hash(request: HttpRequest) -> str:
    """Return the word about the body that the client has signed. Raises `S3Error` for a request without it."""
    if request.header("authorization"):
        if not (word := request.header("x-amz-content-sha256")):
            raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256.")
        return word
    return UNSIGNED_PAYLOAD
