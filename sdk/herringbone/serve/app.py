"""The ASGI application: one port for SageMaker, CloudWatch and its Logs, STS, IAM and S3.

request --> [1] the service that it is signed for
        --> [2] S3: the front of the buckets gets the request whole, and verifies it by `buckets.signer_of`
        --> [3] others: body within limits -> signature -> rate
        --> [4] the threads of the caller's key: replay -> operation -> answer -> audit

A creation may take seconds, so the calls of each key have threads of their own in [4]. The calls of a key with many
slow ones wait in its own line, and those of the others do not notice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from herringbone.s3.front.documents import error_document
from herringbone.s3.front.refusals import HttpRequest
from herringbone.serve import model, wire
from herringbone.serve.actions import ACTIONS, SERVICES, check_fates, not_here
from herringbone.serve.calls import Call
from herringbone.serve.errors import ApiError, error_of, too_often
from herringbone.serve.limits import Rate, Replays
from herringbone.serve.signing.signature import S3_SKEW_SECONDS, Claim, check, parse
from herringbone.system.connections import admit
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from herringbone.serve.records import Audit
    from herringbone.serve.settings import Settings
    from herringbone.serve.signing.keys import AccessKey, KeyFile

# The largest request that SageMaker's limits allow has about 100 KB of hyperparameters and variables.
MAX_BODY_BYTES = 1 << 20
BODY_SECONDS = 20.0
# Calls of one key that run at once, and that wait for it.
THREADS_OF_KEY, MAX_WAITING = 4, 64
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Verified:
    """A caller whose signature is right. `signing_key` and `claim` verify the chunks of a streamed upload."""

    key: AccessKey
    claim: Claim
    signing_key: bytes


class Verifier:
    """Checks signatures against the file of keys, and each key's rate.

    >>> Verifier(KeyFile(path), settings)(request, payload_hash).key.name        # doctest: +SKIP
    'ada'

    `payload_hash` is the body's SHA-256 in hex, or the word of S3's header x-amz-content-sha256. Raises `ApiError`.
    """

    def __init__(self, keys: KeyFile, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._settings = settings
        self.clock = clock
        # By service as well: a client that uploads many files must still learn the state of its jobs.
        self._rates: dict[tuple[str, bool], Rate] = {}
        started = clock()
        self._replays, self._replays_of_s3 = Replays(started), Replays(started, S3_SKEW_SECONDS)

    def __call__(self, request: HttpRequest, payload_hash: str) -> Verified:
        claim = parse(request)
        key = self._keys.find(claim.key_id)
        if key is None:
            raise ApiError("UnrecognizedClientException", "The security token included in the request is invalid.", 403)
        signing_key = check(claim, request, secret=key.secret, payload_hash=payload_hash, now=self.clock())
        if claim.region not in self._settings.regions and claim.service != "iam" and not self._settings.any_region:
            raise ApiError(
                "InvalidSignatureException",
                f"Credential should be scoped to a valid region: this service has {', '.join(self._settings.regions)}",
                403,
            )
        return Verified(key, claim, signing_key)

    def check_rate(self, verified: Verified) -> None:
        """Take one of the key's calls. Raises `ApiError` (ThrottlingException) when there are too many."""
        of_s3 = verified.claim.service == "s3"
        speed = self._settings.s3_calls_per_second if of_s3 else self._settings.calls_per_second
        rate = self._rates.setdefault((verified.key.key_id, of_s3), Rate(per_second=speed, burst=10 * speed))
        if not rate.take(self.clock()):
            raise too_often("Rate exceeded")

    def check_replay(self, claim: Claim, *, changes: bool) -> None:
        """Raise `ApiError` (ThrottlingException) for a signature of SageMaker's that comes again."""
        self._replays.check(claim.signature, claim.signed_at, self.clock(), changes=changes)

    def is_new(self, claim: Claim) -> bool:
        """Note a write of S3, and report whether its signature is new."""
        return self._replays_of_s3.is_new(claim.signature, claim.signed_at, self.clock())


class Service:
    """The application; `operations` has those of all services but S3 by name, `buckets` is the front of S3.

    >>> Service(verifier, operations, settings, audit)               # doctest: +SKIP

    Without `buckets`, calls of S3 are refused.
    """

    def __init__(
        self,
        verifier: Verifier,
        operations: Mapping[str, Callable[[Call, dict[str, Any]], dict[str, Any]]],
        settings: Settings,
        audit: Audit,
        *,
        buckets: ASGIApp | None = None,
        body_seconds: float = BODY_SECONDS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._body_seconds, self._max_waiting = body_seconds, max_waiting
        self._verifier = verifier
        self._operations = operations
        self._settings = settings
        self._audit = audit
        self._buckets = buckets
        # By key, for the loop's own thread alone.
        self._threads: dict[str, CapacityLimiter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest.of_scope(scope)
        if self._buckets is not None and _is_of_buckets(request):
            await self._buckets(scope, receive, send)
            return
        try:
            body = await _body(request, receive, self._body_seconds)
        except ApiError as error:
            await _error("", wire.protocol_of(request), error, str(uuid.uuid4()))(scope, receive, send)
            return
        note: dict[str, Any] = {"id": str(uuid.uuid4()), "client": _client(scope)}
        # This takes less than a millisecond, so no caller keeps the threads that all share.
        work = partial(self._verified, request, body, note)
        response = await run_in_threadpool(self._guarded, request, note, work)
        if not isinstance(response, Response):
            has_room = admit(scope, response.key.name)
            response = await self._in_line(response, request, body, note, has_room=has_room)
        await response(scope, receive, send)

    async def _in_line(
        self, verified: Verified, request: HttpRequest, body: bytes, note: dict[str, Any], *, has_room: bool
    ) -> Response:
        """Answer in one of the threads of the caller's key, when it is the call's turn."""
        threads = self._threads.setdefault(verified.key.key_id, CapacityLimiter(THREADS_OF_KEY))
        work = partial(self._answer, verified, request, body, note)
        if has_room and threads.statistics().tasks_waiting < self._max_waiting:
            return await to_thread.run_sync(self._guarded, request, note, work, limiter=threads)
        # Each waiting call holds a connection, and all users share those.
        reason = f"{self._max_waiting} calls of this key wait already"
        work = partial(_raise, too_often(reason if has_room else "this key has as many connections as it may"))
        response = await run_in_threadpool(self._guarded, request, note, work)
        if not has_room:
            # The next call finds room.
            response.headers["connection"] = "close"
        return response

    def _guarded(self, request: HttpRequest, note: dict[str, Any], work: Callable[[], _T]) -> _T | Response:
        """Return the result of `work`, or the answer to the error that it raised, which the audit then has."""
        try:
            return work()
        except ApiError as error:
            failure = error
        except HerringboneError as error:
            failure = error_of(error)
        except Exception:  # noqa: BLE001 - one call's bug must not end the service, and the log has it
            # The caller gets no details: they may be another user's.
            _LOG.exception("request %s", note["id"])
            failure = ApiError("InternalFailure", f"the service failed; its log has request {note['id']}", 500)
        self._audit.add(**note, status=failure.status, error=failure.code)
        return _error(note.get("service", ""), wire.protocol_of(request), failure, note["id"])

    def _verified(self, request: HttpRequest, body: bytes, note: dict[str, Any]) -> Verified:
        verified = self._verifier(request, hashlib.sha256(body).hexdigest())
        service = verified.claim.service
        note |= {"key": verified.key.name, "service": service, "region": verified.claim.region}
        if service == "s3":
            raise ApiError("NotImplemented", "this service has no buckets; its operator names them by --buckets", 501)
        self._verifier.check_rate(verified)
        if service not in SERVICES or request.method != "POST":
            raise not_here(f"{service}: {request.header('x-amz-target') or f'{request.method} {request.path}'}")
        return verified

    def _answer(self, verified: Verified, request: HttpRequest, body: bytes, note: dict[str, Any]) -> Response:
        claim = verified.claim
        protocol = wire.protocol_of(request)
        asked = wire.asked_of(protocol, request, body)
        note["operation"] = asked.name
        if not wire.is_of(asked, protocol, claim.service):
            raise not_here(f"{claim.service}: {f'{asked.prefix}.{asked.name}' if asked.prefix else request.path}")
        refusal = "InvalidAction" if protocol is wire.Protocol.QUERY else "UnsupportedOperation"
        operation = model.find_operation(claim.service, asked.name, refusal=refusal)
        # After everything that refuses a call without running it, so that the same bytes may come again.
        changes = ACTIONS[asked.name].changes
        self._verifier.check_replay(claim, changes=changes)
        members = wire.read_members(protocol, body, operation.input_shape)
        model.check_members(operation, members)
        check_fates(asked.name, members)
        for member in ("TrainingJobName", "HyperParameterTuningJobName", "ResourceArn", "logStreamName"):
            if isinstance(members.get(member), str):
                note["resource"] = members[member][:256]
        # Where any region may be named, all of them are one.
        region = self._settings.regions[0] if self._settings.any_region else claim.region
        call = Call(verified.key, region, request.header("amz-sdk-invocation-id")[:128], body)
        answer = self._operations[asked.name](call, model.with_times(operation, members))
        model.check_answer(operation, answer)
        document = wire.answer(protocol, operation, answer, note["id"])
        self._audit.add(**note, status=200)
        return Response(document, headers=wire.headers(protocol, note["id"]))


def _is_of_buckets(request: HttpRequest) -> bool:
    """Report whether a request is one of S3's; the front checks the signature itself, also of anonymous ones."""
    try:
        return parse(request).service == "s3"
    except ApiError:
        return not request.header("x-amz-target") and request.method != "POST"


async def _body(request: HttpRequest, receive: Receive, seconds: float) -> bytes:
    """Return the body. Raises `ApiError` for one that is too large, or comes too slowly."""
    length = request.header("content-length")
    too_large = ApiError("RequestEntityTooLarge", f"a request has at most {MAX_BODY_BYTES} bytes", 413)
    if length.isascii() and length.isdigit() and (len(length) > 15 or int(length) > MAX_BODY_BYTES):
        raise too_large
    body = bytearray()
    deadline = time.monotonic() + seconds
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except (asyncio.TimeoutError, TimeoutError):
            raise ApiError("RequestTimeout", f"the body did not arrive within {seconds:.0f} s", 408) from None
        if message["type"] == "http.disconnect":
            raise ApiError("RequestTimeout", "the client went away", 408)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


def _raise(error: ApiError) -> Response:
    raise error


def _error(service: str, protocol: wire.Protocol, error: ApiError, request_id: str) -> Response:
    if service == "s3":
        return Response(
            error_document(error.code, error.message, request_id), error.status, media_type="application/xml"
        )
    response = Response(wire.error(protocol, error, request_id), error.status, wire.headers(protocol, request_id))
    response.headers["x-amzn-errortype"] = error.code
    if error.status in (408, 413):
        # The rest of the body would be read as the next request.
        response.headers["connection"] = "close"
    return response


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return "" if client is None else f"{client[0]}:{client[1]}"
