"""The ASGI application: one request of S3's protocol, one answer.

    request --verifier--> who signed it --> [1] bucket and key of the path --> [2] the operation of method and query
                                            [3] answer: XML, a file in pieces, or an error

Content goes through in pieces, in both directions: a file of any size needs a few megabytes of memory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from herringbone.s3.front import documents
from herringbone.s3.front.answers import (
    copy_content,
    file_response,
    meta_of,
    part_number,
    span,
    xml,
)
from herringbone.s3.front.body import receive_file, receive_text
from herringbone.s3.front.conditions import Conditions, Facts
from herringbone.s3.front.documents import Member, time_text
from herringbone.s3.front.keys import check_key
from herringbone.s3.front.listing import list_buckets, list_page, list_parts, list_uploads
from herringbone.s3.front.operations import find_operation, method_of
from herringbone.s3.front.refusals import HttpRequest, Outcome, S3Error, Signer, Verifier
from herringbone.s3.front.removal import held_alone, remove_abandoned
from herringbone.s3.front.store import Store
from herringbone.s3.front.uploads import Uploads, no_upload
from herringbone.system.connections import admit

# Options of a query by which access logs name an operation.
_LOGGED = ("uploads", "uploadId", "delete", "location", "versioning")
# Lists of access that say what holds anyway: the bucket's owner, and nobody else.
_PRIVATE_LISTS = ("private", "bucket-owner-full-control", "bucket-owner-read")
# Writes that have no effect when they come again and nobody else has written. Their handlers look whether that is so.
_WITHOUT_EFFECT_AGAIN = ("PutObject", "DeleteObject", "DeleteObjects")
# Calls of one signer that work at once, apart from waiting for bytes of the client.
THREADS_OF_SIGNER = 4
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose signature was verified: its signer, its bucket and key, and its query."""

    request: Request
    signer: Signer
    bucket: str
    key: str
    options: dict[str, str]
    threads: CapacityLimiter

    async def run(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Return the result of work in one of the threads of the signer, when it is the call's turn."""
        return await to_thread.run_sync(partial(work, *arguments, **options), limiter=self.threads)

    @property
    def conditions(self) -> Conditions:
        return Conditions.of(self.request.headers)


def make_app(
    folder: Path,
    verifier: Verifier,
    *,
    host: str | None = None,
    observer: Callable[[Outcome], None] | None = None,
    new_buckets: bool = False,
) -> ASGIApp:
    """Return an ASGI application that serves the buckets below a folder.

    >>> app = make_app(Path("/srv/buckets"), verifier)                       # doctest: +SKIP
    >>> uvicorn.run(app, host="127.0.0.1", port=9000)                        # doctest: +SKIP

    `verifier` returns who signed a request, or raises `S3Error`. With `host`, the name `BUCKET.host` in a request means
    the bucket, too; otherwise the bucket is in the path alone. `observer` gets each call before its answer is sent; a
    call for which it raises is not answered. With `new_buckets`, the first object of a bucket makes it. One process
    serves a folder.
    """
    # Held to the end of the process.
    remove_abandoned(folder, alone=held_alone(folder) is not None)
    front = Front(Handlers(Store(folder, new_buckets=new_buckets)), verifier, host, observer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            request = Request(scope, receive)
            try:
                response = await front.answer(request)
                await response(scope, receive, send)
            except ClientDisconnect:
                # Nobody is left to answer, and what has arrived is removed.
                return

    return app


class Front:
    """Answers requests by the handlers."""

    def __init__(
        self,
        handlers: Handlers,
        verifier: Verifier,
        host: str | None,
        observer: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._handlers, self._verifier, self._host = handlers, verifier, host
        self._observer = observer
        # By signer, for the loop's own thread alone.
        self._threads: dict[str, CapacityLimiter] = {}

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request; errors are answers."""
        identifier = os.urandom(8).hex().upper()
        signed, signer, code = HttpRequest.of_scope(request.scope), Signer(""), ""
        try:
            try:
                # This takes less than a millisecond, so no caller keeps the threads that all share.
                signer = await run_in_threadpool(self._verifier, signed)
                if not admit(request.scope, signer.identity):
                    raise S3Error("SlowDown", "Your key has as many connections as it may. Close some.", 503)
                response = await self._verified(request, signed, signer)
            except FileNotFoundError:
                raise _gone(signed) from None
            except OSError as error:
                # A full or broken disk; the name of the file is for the log of the server alone.
                print(f"{request.method} {request.url.path}: {error}", file=sys.stderr)
                raise S3Error("InternalError", f"The server's disk: {error.strerror}.", 500) from None
        except S3Error as error:
            code = error.code
            # An answer to HEAD has no body, and one that says "as you know it" neither.
            is_empty = request.method == "HEAD" or error.status == 304
            body = b"" if is_empty else documents.error_document(error.code, error.message, identifier)
            response = Response(body, error.status, media_type="application/xml")
            if request.method not in ("GET", "HEAD") or error.status == 503:
                # The rest of a body that nobody reads must not be taken for the next request.
                response.headers["connection"] = "close"
        response.headers["x-amz-request-id"] = identifier
        if self._observer is not None:
            client = "" if request.client is None else f"{request.client.host}:{request.client.port}"
            outcome = Outcome(
                identifier, client, signer.identity, _operation(signed), signed.path, response.status_code, code
            )
            await run_in_threadpool(self._observer, outcome)
        return response

    async def _verified(self, request: Request, signed: HttpRequest, signer: Signer) -> Response:
        bucket, key = self._location(request, signed.path)
        # In S3's addresses "+" is a plus; parse_qsl reads forms, where it is a space.
        query = signed.query.replace("+", "%2B")
        options = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
        resource = "object" if key else "bucket" if bucket else "service"
        name = find_operation(request.method, resource, options, request.headers)
        if request.headers.get("x-amz-acl", "private") not in _PRIVATE_LISTS:
            raise S3Error("AccessControlListNotSupported", "The bucket does not allow ACLs.")
        if key and request.method in ("PUT", "POST"):
            # Files that came by other means may have longer paths.
            check_key(key)
        signer.check_repeat(changes=name not in _WITHOUT_EFFECT_AGAIN)
        # [2] The methods have S3's names: `get_object` answers GetObject.
        threads = self._threads.setdefault(signer.identity, CapacityLimiter(THREADS_OF_SIGNER))
        handler, call = getattr(self._handlers, method_of(name)), Call(request, signer, bucket, key, options, threads)
        answer: Response = await (handler(call) if iscoroutinefunction(handler) else call.run(handler, call))
        return answer

    def _location(self, request: Request, path: str) -> tuple[str, str]:
        """[1] Return bucket and key, "" for none."""
        root = request.scope.get("root_path", "")
        try:
            # The path as it was sent: a server's own decoding would lose the difference between %2F and a slash.
            text = unquote_to_bytes(path).decode()
        except UnicodeDecodeError:
            raise S3Error("InvalidURI", "The path is not UTF-8.") from None
        text = text.removeprefix(root).removeprefix("/")
        name = request.headers.get("host", "").partition(":")[0].lower()
        if self._host is not None and name.endswith(f".{self._host}"):
            return name.removesuffix(f".{self._host}"), text
        bucket, _, key = text.partition("/")
        return bucket, key


class Handlers:
    """The answers, by the names of S3's operations. Those that receive no body run in a thread."""

    def __init__(self, store: Store) -> None:
        self._store, self._uploads = store, Uploads(store)

    def list_buckets(self, call: Call) -> Response:
        return list_buckets(self._store, call.signer.identity, call.options)

    async def create_bucket(self, call: Call) -> Response:
        documents.check_bucket(await receive_text(call.request, call.signer, documents.MAX_BYTES, call.threads))
        await call.run(self._store.create_bucket, call.bucket)
        return Response(headers={"location": f"/{call.bucket}"})

    def head_bucket(self, call: Call) -> Response:
        self._store.target(call.bucket, make=False)
        return Response()

    def delete_bucket(self, call: Call) -> Response:
        self._store.delete_bucket(call.bucket)
        return Response(status_code=204)

    def get_bucket_location(self, call: Call) -> Response:
        self._store.bucket(call.bucket)
        # Empty means the first region; a folder is in none.
        return xml("LocationConstraint", [])

    def get_bucket_versioning(self, call: Call) -> Response:
        self._store.bucket(call.bucket)
        return xml("VersioningConfiguration", [])

    def list_objects(self, call: Call) -> Response:
        return list_page(self._store, call.bucket, call.options)

    list_objects_v2 = list_objects

    async def delete_objects(self, call: Call) -> Response:
        text = await receive_text(call.request, call.signer, documents.MAX_BYTES, call.threads)
        return await call.run(self._delete, call, *documents.parse_deletion(text))

    def _delete(self, call: Call, keys: list[tuple[str, str]], quiet: bool) -> Response:
        members: list[Member] = []
        for key, etag in keys:
            try:
                self._delete_key(call, key, Conditions(match=etag))
            except S3Error as error:
                members.append(("Error", [("Key", key), ("Code", error.code), ("Message", error.message)]))
            else:
                members += [] if quiet else [("Deleted", [("Key", key)])]
        return xml("DeleteResult", members)

    def get_object(self, call: Call) -> Response:
        file, facts = self._store.open(call.bucket, call.key)
        try:
            return file_response(call.request.method, call.request.headers, call.options, file, facts, call.threads)
        except BaseException:
            file.close()
            raise

    head_object = get_object

    async def put_object(self, call: Call) -> Response:
        # Before the body arrives, and again by `keep`: another client may be faster.
        await call.run(self._store.check, call.bucket, call.key, call.conditions)
        with self._store.new_file(call.bucket) as file:
            etag = await receive_file(call.request, call.signer, file, call.threads)
            await call.run(self._keep, call, file, etag, meta_of(call.request.headers))
        return Response(headers={"etag": f'"{etag}"'})

    def copy_object(self, call: Call) -> Response:
        source, facts = self._open_source(call.request)
        replaces = call.request.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
        with source, self._store.new_file(call.bucket) as file:
            etag = copy_content(source, file, 0, facts.size)
            facts = self._keep(call, file, etag, meta_of(call.request.headers) if replaces else facts.meta)
        return xml("CopyObjectResult", [("LastModified", time_text(facts.modified)), ("ETag", f'"{facts.etag}"')])

    def _keep(self, call: Call, file: IO[bytes], etag: str, meta: dict[str, str]) -> Facts:
        if call.signer.repeats:
            is_there = self._store.exists(call.bucket, call.key)
            facts = self._store.facts(call.bucket, call.key) if is_there else None
            call.signer.check_repeat(changes=facts is None or facts.etag != etag)
            if facts is not None:
                return facts
        return self._store.keep(file, call.bucket, call.key, etag, meta, conditions=call.conditions)

    def upload_part_copy(self, call: Call) -> Response:
        number, upload = part_number(call.options), call.options["uploadId"]
        self._uploads.check(call.bucket, call.key, upload)
        source, facts = self._open_source(call.request)
        with source, self._store.new_file(call.bucket) as file:
            text = call.request.headers.get("x-amz-copy-source-range")
            if (limits := (0, facts.size) if text is None else span(text, facts.size)) is None:
                raise S3Error("InvalidArgument", "The copy source range is not valid.")
            etag = copy_content(source, file, *limits)
            self._uploads.add(call.bucket, call.key, upload, number, file, etag)
        return xml("CopyPartResult", [("LastModified", time_text(facts.modified)), ("ETag", f'"{etag}"')])

    def _open_source(self, request: Request) -> tuple[IO[bytes], Facts]:
        text, _, version = request.headers["x-amz-copy-source"].partition("?")
        if version:
            raise S3Error("NotImplemented", f"This server has no {version.partition('=')[0]} of a copy's source.", 501)
        bucket, _, key = unquote_to_bytes(text).decode("utf-8", "replace").removeprefix("/").partition("/")
        file, facts = self._store.open(bucket, key)
        try:
            Conditions.of(request.headers, "x-amz-copy-source-if-").check_read(facts, copies=True)
        except BaseException:
            file.close()
            raise
        return file, facts

    def delete_object(self, call: Call) -> Response:
        self._delete_key(call, call.key, call.conditions)
        return Response(status_code=204)

    def _delete_key(self, call: Call, key: str, conditions: Conditions) -> None:
        if call.signer.repeats:
            call.signer.check_repeat(changes=self._store.exists(call.bucket, key))
        else:
            self._store.delete(call.bucket, key, conditions)

    def create_multipart_upload(self, call: Call) -> Response:
        upload = self._uploads.create(call.bucket, call.key, meta_of(call.request.headers))
        return xml("InitiateMultipartUploadResult", [("Bucket", call.bucket), ("Key", call.key), ("UploadId", upload)])

    async def upload_part(self, call: Call) -> Response:
        number, upload = part_number(call.options), call.options["uploadId"]
        await call.run(self._uploads.check, call.bucket, call.key, upload)
        with self._store.new_file(call.bucket) as file:
            etag = await receive_file(call.request, call.signer, file, call.threads)
            await call.run(self._uploads.add, call.bucket, call.key, upload, number, file, etag)
        return Response(headers={"etag": f'"{etag}"'})

    async def complete_multipart_upload(self, call: Call) -> Response:
        parts = documents.parse_parts(await receive_text(call.request, call.signer, documents.MAX_BYTES, call.threads))
        size, upload = call.request.headers.get("x-amz-mp-object-size"), call.options["uploadId"]
        facts = await call.run(
            self._uploads.complete, call.bucket, call.key, upload, parts, size=size, conditions=call.conditions
        )
        members: list[Member] = [("Bucket", call.bucket), ("Key", call.key), ("ETag", f'"{facts.etag}"')]
        return xml("CompleteMultipartUploadResult", members)

    def abort_multipart_upload(self, call: Call) -> Response:
        self._uploads.abort(call.bucket, call.key, call.options["uploadId"])
        return Response(status_code=204)

    def list_parts(self, call: Call) -> Response:
        return list_parts(self._uploads, call.bucket, call.key, call.options)

    def list_multipart_uploads(self, call: Call) -> Response:
        return list_uploads(self._uploads, call.bucket, call.options)


def _gone(request: HttpRequest) -> S3Error:
    """Return the refusal of a call during which another one has removed its upload or its bucket."""
    if re.search("(^|&)uploadId=", request.query):
        return no_upload()
    return S3Error("OperationAborted", "Another call has removed the bucket meanwhile. Try again.", 409)


def _operation(request: HttpRequest) -> str:
    """Return an operation's name as S3's server access logs have it."""
    bucket, _, key = request.path.removeprefix("/").partition("/")
    options = {part.partition("=")[0] for part in request.query.split("&")}
    kind = next((name.upper() for name in _LOGGED if name in options), "")
    if not kind:
        kind = "OBJECT" if key else "BUCKET" if bucket else "SERVICE"
    return f"REST.{request.method}.{kind}"


async def _live(receive: Receive, send: Send) -> None:
    """Answer the server's messages about its start and its end."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
