"""Transfer code, data and models between this machine and S3, and show the progress.

Uploaded objects are named by the hash of their content. So each object is uploaded once, appears whole or not at all,
and never holds other content than its name says.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from herringbone.aws.location import S3Location, split_s3_uri
from herringbone.aws.session import AwsSession
from herringbone.system.progress import Progress
from herringbone_contract.errors import ArchiveError, AwsError, InputError

# Files of at least this size travel in parts, several at once.
_PART_BYTES = 8 << 20
# S3 accepts 10,000 parts per object.
_MAX_PARTS = 9_000
_UPLOAD_THREADS = 8
_READ_BYTES = 1 << 20
_ARCHIVE_SUFFIX = ".tar.gz"
# The ETag is the object's MD5 only where the object was sent in one request and KMS did not encrypt it.
_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"')


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file and its destination.

    `sha256` is the hash of the content, where the file was read before and may have changed since.
    """

    path: Path
    location: S3Location
    num_bytes: int
    sha256: str | None = None


class Uploader:
    """Uploads files to buckets of the caller's account.

    >>> uploader = Uploader(session, kms_key=None, progress=Progress())                # doctest: +SKIP
    >>> uploader.send("data", uploader.missing(uploads))                               # doctest: +SKIP

    S3 shows an object only once it is whole, so a new call continues an interrupted upload with the missing objects.
    With `kms_key`, that key encrypts the objects; otherwise the bucket's settings decide. Raises `AwsError`, and
    `InputError` for a file that changed since it was read.
    """

    def __init__(self, session: AwsSession, *, kms_key: str | None, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        # With each request: S3 then refuses a bucket of another account, should one have taken the name.
        self._owner = {"ExpectedBucketOwner": session.account}
        self._encryption = {} if kms_key is None else {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}

    def has(self, upload: Upload) -> bool:
        """Return whether a file's object exists, encrypted as the caller asks."""
        bucket, key = upload.location
        try:
            with self._session.explain_errors(f"to look for {upload.location}"):
                head = self._session.client("s3").head_object(Bucket=bucket, Key=key, **self._owner)
        except AwsError as error:
            if error.code in ("404", "NoSuchKey"):
                return False
            raise
        # An earlier job without `kms_key` may have uploaded the same content.
        return not self._encryption or head.get("ServerSideEncryption") == "aws:kms"

    def missing(self, uploads: Sequence[Upload]) -> list[Upload]:
        """Return the uploads whose object does not exist yet; all must lie below one prefix of one bucket."""
        keys = [upload.location.key for upload in uploads]
        prefix = S3Location(uploads[0].location.bucket, os.path.commonpath(keys))
        # One listing takes fewer requests than a HEAD request for each file.
        with self._session.explain_errors(f"to list {prefix}"):
            pages = self._session.client("s3").get_paginator("list_objects_v2")
            sizes = {
                entry["Key"]: entry["Size"]
                for page in pages.paginate(Bucket=prefix.bucket, Prefix=prefix.key, **self._owner)
                for entry in page.get("Contents", ())
            }
        # The prefix contains a hash of all contents, so an object of the right size under it has the right content.
        return [upload for upload in uploads if sizes.get(upload.location.key) != upload.num_bytes]

    def send(self, subject: str, uploads: Sequence[Upload]) -> None:
        """Upload files, several small ones at once; the progress line names the `subject`."""
        small = [upload for upload in uploads if upload.num_bytes < _PART_BYTES]
        large = [upload for upload in uploads if upload.num_bytes >= _PART_BYTES]
        with self._progress.uploading(subject, sum(upload.num_bytes for upload in uploads)) as count:
            with ThreadPoolExecutor(_UPLOAD_THREADS) as pool:
                futures = [pool.submit(self._send_whole, upload, count) for upload in small]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    # Otherwise leaving the `with` block would upload all remaining files before the error appears.
                    pool.shutdown(cancel_futures=True)
                    raise
            for upload in large:
                self._send_parts(upload, count)

    def put(self, location: S3Location, content: bytes) -> None:
        """Write a small object."""
        with self._session.explain_errors(f"to upload {location}"):
            self._session.client("s3").put_object(
                Bucket=location.bucket, Key=location.key, Body=content, **self._owner, **self._encryption
            )

    def _send_whole(self, upload: Upload, count: Callable[[int], None]) -> None:
        with _CheckedFile(upload) as file:
            body = file.read()
        self.put(upload.location, body)
        count(len(body))

    def _send_parts(self, upload: Upload, count: Callable[[int], None]) -> None:
        bucket, key = upload.location
        # A very large file needs larger parts to stay below S3's limit on their number.
        config = self._session.transfer_config(part_bytes=max(_PART_BYTES, upload.num_bytes // _MAX_PARTS))
        with _CheckedFile(upload) as file, self._session.explain_errors(f"to upload {upload.path}"):
            self._session.client("s3").upload_fileobj(
                file, bucket, key, ExtraArgs={**self._owner, **self._encryption}, Callback=count, Config=config
            )


class _CheckedFile:
    """A file that one thread reads from start to end; the last read raises `InputError` if the content has changed.

    That read happens before the last part is sent, so no object appears under the hash of other content.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._sha256 = hashlib.sha256()
        self._file: IO[bytes]

    def __enter__(self) -> _CheckedFile:
        try:
            self._file = self._upload.path.open("rb")
        except OSError as error:
            raise InputError(f"{self._upload.path} cannot be read any more: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, num_bytes: int = -1) -> bytes:
        piece = self._file.read(num_bytes)
        if self._upload.sha256 is not None:
            self._sha256.update(piece)
            # A short read is the last one.
            if num_bytes < 0 or len(piece) < num_bytes:
                self._check(self._upload.sha256)
        return piece

    def _check(self, expected: str) -> None:
        if self._sha256.hexdigest() != expected:
            raise InputError(f"{self._upload.path} has changed since it was read; call fit() again once it is stable")


def fetch_artifact(session: AwsSession, uri: str, into: Path, *, progress: Progress, part: str = "model") -> Path:
    """Download an archive, or all objects below a prefix; return the archive, or the folder of the objects.

    >>> fetch_artifact(session, "s3://mine/digits-1/output/model.tar.gz", Path("new"), progress=Progress())
    ... # doctest: +SKIP
    PosixPath('new/model.tar.gz')

    `part` is the word for the results in messages. Raises `InputError` when nothing is at the URI, `ArchiveError` when
    the received bytes differ from the object.
    """
    bucket, key = split_s3_uri(uri)
    fetcher = _Fetcher(session, bucket, part)
    if key.endswith(_ARCHIVE_SUFFIX):
        head = fetcher.head(key)
        with progress.downloading(f"the {part}", head["ContentLength"]) as count:
            fetcher.fetch(key, head, into / f"{part}.tar.gz", count)
        return into / f"{part}.tar.gz"
    prefix = f"{key.rstrip('/')}/"
    entries = fetcher.list_below(prefix)
    if not entries:
        raise InputError(f"{uri}: there is no object; was the {part} moved or deleted?")
    folder = into / part
    with progress.downloading(f"the {part}", sum(entry["Size"] for entry in entries)) as count:
        for entry in entries:
            fetcher.fetch(entry["Key"], entry, _path_inside(folder, entry["Key"].removeprefix(prefix)), count)
    return folder


class _Fetcher:
    """Downloads objects of one bucket, and checks each against the entry in which S3 first listed it."""

    def __init__(self, session: AwsSession, bucket: str, part: str) -> None:
        self._session = session
        self._bucket = bucket
        self._part = part

    def head(self, key: str) -> dict[str, Any]:
        try:
            with self._session.explain_errors(f"to find the {self._part} s3://{self._bucket}/{key}"):
                head: dict[str, Any] = self._session.client("s3").head_object(Bucket=self._bucket, Key=key)
        except AwsError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket"):
                raise InputError(f"s3://{self._bucket}/{key}: there is no object; was it moved?") from None
            raise
        return head

    def list_below(self, prefix: str) -> list[dict[str, Any]]:
        with self._session.explain_errors(f"to list the {self._part} s3://{self._bucket}/{prefix}"):
            pages = self._session.client("s3").get_paginator("list_objects_v2")
            return [
                entry
                for page in pages.paginate(Bucket=self._bucket, Prefix=prefix)
                for entry in page.get("Contents", ())
                # S3's console represents an empty folder as an object whose key ends with a slash.
                if not entry["Key"].endswith("/")
            ]

    def fetch(self, key: str, entry: dict[str, Any], path: Path, count: Callable[[int], None]) -> None:
        """Download an object, and compare it with the size and the ETag of its `entry`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._session.explain_errors(f"to fetch s3://{self._bucket}/{key}"):
            config = self._session.transfer_config(part_bytes=_PART_BYTES)
            client = self._session.client("s3")
            client.download_file(self._bucket, key, str(path), Callback=count, Config=config)
        expected = entry.get("ContentLength", entry.get("Size"))
        if (size := path.stat().st_size) != expected:
            raise ArchiveError(f"s3://{self._bucket}/{key}: {size} of {expected} bytes arrived; fetch it again")
        md5 = _MD5_ETAG.fullmatch(entry["ETag"])
        if md5 and entry.get("ServerSideEncryption") != "aws:kms" and _md5_of(path) != md5[1]:
            raise ArchiveError(f"s3://{self._bucket}/{key}: the checksum of the received file differs; fetch it again")


def _path_inside(folder: Path, name: str) -> Path:
    # S3 keys are arbitrary text, so a hostile key could name a path outside the folder.
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/"):
        raise ArchiveError(f"object {name!r} would land outside its folder; fetch it by hand")
    return folder.joinpath(*parts)


def _md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
