"""Transfer code, data and models between this machine and S3, and show the progress.

Uploaded objects are named by the hash of their content. So each object is uploaded once, appears whole or not at all,
and never holds other content than its name says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from herringbone.aws.location import S3Location, split_s3_uri
from herringbone.aws.session import AwsSession
from herringbone.s3.bucket import Buckets
from herringbone.s3.cache import fetch_all
from herringbone.s3.names import files_of
from herringbone.system.progress import Progress
from herringbone_contract.errors import AwsError, InputError

# Files of at least this size travel in parts, several at once.
_PART_BYTES = 8 << 20
# S3 accepts 10,000 parts per object.
_MAX_PARTS = 9_000
_UPLOAD_THREADS = 8
_ARCHIVE_SUFFIX = ".tar.gz"


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

    `part` is the word for the results in messages. Raises `InputError` when nothing is at the URI or a key can be no
    file's name, `ArchiveError` when the received bytes differ from the object.
    """
    location, buckets = split_s3_uri(uri), Buckets(session)
    if location.key.endswith(_ARCHIVE_SUFFIX):
        result = into / f"{part}{_ARCHIVE_SUFFIX}"
        files = {result: buckets.head(location, f"the {part}")}
    else:
        prefix, result = f"{location.key.rstrip('/')}/", into / part
        listed = buckets.objects(S3Location(location.bucket, prefix), f"the {part}")
        # S3's console represents an empty folder as an object whose key ends with a slash.
        named = ((stored.key.removeprefix(prefix), stored) for stored in listed if not stored.key.endswith("/"))
        files = {result / name: stored for name, stored in files_of(named, uri).items()}
    if not files:
        raise InputError(f"{uri}: there is no object; was the {part} moved or deleted?")

    def fetch(path: Path, count: Callable[[int], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w+b") as file:
            buckets.download(files[path], file, count)
        partial.replace(path)

    with progress.downloading(f"the {part}", sum(stored.size for stored in files.values())) as count:
        fetch_all(fetch, files, count)
    return result
