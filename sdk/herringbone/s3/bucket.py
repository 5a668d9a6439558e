"""Read and write objects through one session: list, download checked, upload."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from herringbone.aws.location import S3Location
from herringbone.aws.session import AwsSession
from herringbone.s3.names import StoredObject
from herringbone_contract.errors import ArchiveError, AwsError, HerringboneError, InputError

# Servers of one's own, such as MinIO, need no region, but each signature contains one.
_ANY_REGION = "us-east-1"
_PART_BYTES = 8 << 20
_READ_BYTES = 1 << 20
# Broken connections to one object, without a byte in between, before a reader gives up.
_MOST_BREAKS, _PAUSE_SECONDS = 4, 1.0
# S3 accepts 10,000 parts per object.
_MAX_PARTS = 9_000
# The ETag is the object's MD5 only where the object was sent in one request and KMS did not encrypt it.
_MD5_ETAG = re.compile(r"[0-9a-f]{32}")
_MISSING = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")
_CHANGED = ("412", "PreconditionFailed", *_MISSING)


class Buckets:
    """The buckets that a session reaches, at AWS or at the endpoint that boto's own settings name.

    >>> buckets = Buckets(AwsSession.of(None))                                   # doctest: +SKIP
    >>> next(buckets.objects(S3Location("mine", "data/"))).key                   # doctest: +SKIP
    'data/a.csv'

    Several threads may share it. Raises `InputError` for what does not exist, and the `AwsError`s.
    """

    def __init__(self, session: AwsSession) -> None:
        self._session = session

    @property
    def _client(self) -> Any:
        region = self._session.access_region or _ANY_REGION
        return self._session.client("s3", region=region)

    @property
    def endpoint(self) -> str:
        """The server's address, which tells equal names of buckets on two servers apart."""
        return str(self._client.meta.endpoint_url)

    @contextmanager
    def _asking(self, purpose: str, missing: HerringboneError, codes: tuple[str, ...] = _MISSING) -> Iterator[None]:
        """Explain errors of the requests in the body; raise `missing` for one with such a code."""
        try:
            with self._session.explain_errors(purpose.removeprefix(": ")):
                yield
        except AwsError as error:
            if error.code in codes:
                raise missing from None
            raise

    def check_bucket(self, bucket: str, option: str) -> None:
        """Check that a bucket exists and lets this session in."""
        missing = InputError(f"{option}: there is no bucket {bucket}; create it, or name another")
        with self._asking(f"{option}: to look at bucket {bucket}", missing):
            self._client.head_bucket(Bucket=bucket)

    def first(self, location: S3Location, option: str) -> StoredObject:
        """Return the first object whose key begins so, and check that it may be read. Raises `InputError`."""
        stored = next(self.objects(location, option, most=1), None)
        if stored is None:
            raise InputError(f"{option}: {location}: no object has a key that begins so; is the address right?")
        self.head(S3Location(stored.bucket, stored.key), option)
        return stored

    def objects(self, location: S3Location, option: str = "", *, most: int = 1_000) -> Iterator[StoredObject]:
        """List the objects whose keys begin with the location's key; `most` is the number of each request."""
        missing = InputError(f"{option}: {location}: there is no bucket {location.bucket}")
        with self._asking(f"{option}: to list {location}", missing):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(
                Bucket=location.bucket, Prefix=location.key, PaginationConfig={"PageSize": most}
            ):
                for entry in page.get("Contents", ()):
                    yield _stored(location.bucket, entry["Key"], entry["Size"], entry)

    def head(self, location: S3Location, option: str = "") -> StoredObject:
        """Return one object's size and ETag, and check that it may be read."""
        missing = InputError(f"{option}: {location}: there is no such object")
        with self._asking(f"{option}: to look at {location}", missing):
            answer = self._client.head_object(Bucket=location.bucket, Key=location.key)
        return _stored(location.bucket, location.key, answer["ContentLength"], answer)

    def read(self, location: S3Location, *, limit: int, option: str = "") -> bytes:
        """Return a small object. Raises `InputError` for one with more than `limit` bytes."""
        if (size := self.head(location, option).size) > limit:
            raise InputError(f"{option}: {location} has {size} bytes, and at most {limit} are read")
        with self._session.explain_errors(f"to read {location}"):
            return bytes(self._client.get_object(Bucket=location.bucket, Key=location.key)["Body"].read())

    def download(self, stored: StoredObject, file: IO[bytes], count: Callable[[int], None]) -> None:
        """Write an object into an empty file and compare size and MD5. Raises `ArchiveError` where it has changed."""
        location = S3Location(stored.bucket, stored.key)
        with self._asking(f"to fetch {location}", _changed(location), _CHANGED):
            if stored.size <= _PART_BYTES:
                answer = self._client.get_object(Bucket=stored.bucket, Key=stored.key, IfMatch=stored.etag)
                for piece in answer["Body"].iter_chunks(_READ_BYTES):
                    file.write(piece)
                    count(len(piece))
            else:
                config = self._session.transfer_config(part_bytes=_PART_BYTES)
                self._client.download_fileobj(stored.bucket, stored.key, file, Callback=count, Config=config)
        file.flush()
        if (size := os.fstat(file.fileno()).st_size) != stored.size:
            raise ArchiveError(f"{location}: {size} of {stored.size} bytes arrived; try again")
        if _MD5_ETAG.fullmatch(stored.etag) and _md5_of(file) != stored.etag and not self._is_kms(location):
            raise ArchiveError(f"{location}: the received bytes differ from the object; try again")

    def stream(self, stored: StoredObject) -> Iterator[bytes]:
        """Yield an object piece by piece; where the connection breaks, go on behind the last piece.

        Raises `ArchiveError` where the object has changed since it was listed, and the `AwsError`s.
        """
        location, received, breaks = S3Location(stored.bucket, stored.key), 0, 0
        while received < stored.size:
            begin = received
            try:
                with self._asking(f"to read {location}", _changed(location), _CHANGED):
                    answer = self._client.get_object(
                        Bucket=stored.bucket, Key=stored.key, IfMatch=stored.etag, Range=f"bytes={begin}-"
                    )
                    for piece in answer["Body"].iter_chunks(_READ_BYTES):
                        received += len(piece)
                        yield piece
            except AwsError:
                # Only a body that broke off is worth another request: boto has repeated all others already.
                breaks = breaks + 1 if received == begin else 0
                if received == 0 or breaks > _MOST_BREAKS:
                    raise
                time.sleep(_PAUSE_SECONDS * breaks)
            else:
                if received != stored.size:
                    raise ArchiveError(f"{location}: {received} of {stored.size} bytes arrived; try again")

    def upload(self, path: Path, location: S3Location, count: Callable[[int], None] = lambda _: None) -> None:
        """Write a file into a bucket. S3 shows the object only once it is whole."""
        with path.open("rb") as file:
            self.write(file, location, count)

    def write(
        self,
        file: IO[bytes],
        location: S3Location,
        count: Callable[[int], None] = lambda _: None,
        *,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Write an open file into a bucket, as `upload` does; `metadata` reads it back."""
        size = os.fstat(file.fileno()).st_size
        config = self._session.transfer_config(part_bytes=max(_PART_BYTES, size // _MAX_PARTS))
        with self._session.explain_errors(f"to write {location}"):
            self._client.upload_fileobj(
                file,
                location.bucket,
                location.key,
                Callback=count,
                Config=config,
                ExtraArgs={"Metadata": metadata} if metadata else None,
            )

    def metadata(self, location: S3Location) -> dict[str, str]:
        """Return what `write` has noted about an object; empty for one that does not exist."""
        try:
            with self._session.explain_errors(f"to look at {location}"):
                return dict(self._client.head_object(Bucket=location.bucket, Key=location.key).get("Metadata", {}))
        except AwsError as error:
            if error.code in _MISSING:
                return {}
            raise

    def delete(self, location: S3Location) -> None:
        """Remove an object; one that does not exist is no error."""
        with self._session.explain_errors(f"to remove {location}"):
            self._client.delete_object(Bucket=location.bucket, Key=location.key)

    def _is_kms(self, location: S3Location) -> bool:
        """Report whether KMS encrypts an object: its ETag is then no MD5 of its content."""
        with self._session.explain_errors(f"to look at {location}"):
            answer = self._client.head_object(Bucket=location.bucket, Key=location.key)
        return str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")


def _changed(location: S3Location) -> ArchiveError:
    return ArchiveError(f"{location} has changed since it was listed; try again")


def _stored(bucket: str, key: str, size: int, answer: dict[str, Any]) -> StoredObject:
    return StoredObject(bucket, key, size, answer["ETag"].strip('"'), int(answer["LastModified"].timestamp()))


def _md5_of(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.md5(usedforsecurity=False)
    while piece := file.read(_READ_BYTES):
        digest.update(piece)
    return digest.hexdigest()
