"""Objects that are named by their content: sent once, whole or not at all, and only what the file still is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.bucket import Place
from herringbone.backends.sagemaker.progress import Progress
from herringbone_contract.errors import AwsError, InputError

# From here on a file is sent in parts, several at once; S3 takes 10,000 parts.
_PART_BYTES = 8 << 20
_MAX_PARTS = 9_000
_THREADS = 8


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file and where it goes; `sha256` of its content where it was read before, and may have changed since."""

    path: Path
    place: Place
    num_bytes: int
    sha256: str | None = None


class Uploader:
    """Sends files to buckets of the caller's account.

    >>> uploader = Uploader(session, kms_key=None, progress=Progress())                # doctest: +SKIP
    >>> uploader.send("data", uploader.missing(uploads)               )                 # doctest: +SKIP

    An object is there only when all of it is, so an upload that was cut short goes on with what is missing. With
    `kms_key` objects are encrypted by it, else as their bucket says. Raises `AwsError`s; `InputError` for a file that
    changed since it was read.
    """

    def __init__(self, session: AwsSession, *, kms_key: str | None, progress: Progress) -> None:
        self._session = session
        self._progress = progress
        self._owner = {"ExpectedBucketOwner": session.account}
        self._encryption = {} if kms_key is None else {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}

    def has(self, upload: Upload) -> bool:
        """Say whether the object of a file is there."""
        bucket, key = upload.place
        try:
            with self._session.asking(f"to look for {upload.place}"):
                head = self._session.client("s3").head_object(Bucket=bucket, Key=key, **self._owner)
        except AwsError as error:
            if error.code in ("404", "NoSuchKey"):
                return False
            raise
        # It may be there from before a key was asked for.
        return not self._encryption or head.get("ServerSideEncryption") == "aws:kms"

    def missing(self, uploads: Sequence[Upload]) -> list[Upload]:
        """Return those whose object is not there yet; all of them go below one prefix."""
        below = Place(uploads[0].place.bucket, os.path.commonpath([upload.place.key for upload in uploads]))
        with self._session.asking(f"to list {below}"):
            pages = self._session.client("s3").get_paginator("list_objects_v2")
            there = {
                entry["Key"]: entry["Size"]
                for page in pages.paginate(Bucket=below.bucket, Prefix=below.key, **self._owner)
                for entry in page.get("Contents", ())
            }
        return [upload for upload in uploads if there.get(upload.place.key) != upload.num_bytes]

    def send(self, what: str, uploads: Sequence[Upload]) -> None:
        """Send files, several small ones at once; `what` is said of them."""
        small = [upload for upload in uploads if upload.num_bytes < _PART_BYTES]
        large = [upload for upload in uploads if upload.num_bytes >= _PART_BYTES]
        with self._progress.uploading(what, sum(upload.num_bytes for upload in uploads)) as sent:
            with ThreadPoolExecutor(_THREADS) as pool:
                futures = [pool.submit(self._send_whole, upload, sent) for upload in small]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            for upload in large:
                self._send_parts(upload, sent)

    def put(self, place: Place, content: bytes) -> None:
        """Write a small object."""
        with self._session.asking(f"to upload {place}"):
            self._session.client("s3").put_object(
                Bucket=place.bucket, Key=place.key, Body=content, **self._owner, **self._encryption
            )

    def _send_whole(self, upload: Upload, sent: Callable[[int], None]) -> None:
        with _Content(upload) as content:
            body = content.read()
        self.put(upload.place, body)
        sent(len(body))

    def _send_parts(self, upload: Upload, sent: Callable[[int], None]) -> None:
        bucket, key = upload.place
        config = self._session.transfer_config(part_bytes=max(_PART_BYTES, upload.num_bytes // _MAX_PARTS))
        with _Content(upload) as content, self._session.asking(f"to upload {upload.path}"):
            self._session.client("s3").upload_fileobj(
                content, bucket, key, ExtraArgs={**self._owner, **self._encryption}, Callback=sent, Config=config
            )


class _Content:
    """A file that is read once, from end to end; `InputError` at its end when it is not what it was.

    That comes before the last part is sent, so no object appears under the name of another content.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._sha256 = hashlib.sha256()
        self._file: IO[bytes]

    def __enter__(self) -> _Content:
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
            if num_bytes < 0 or len(piece) < num_bytes:
                self._check(self._upload.sha256)
        return piece

    def _check(self, expected: str) -> None:
        if self._sha256.hexdigest() != expected:
            raise InputError(f"{self._upload.path} has changed since it was read; call fit() again once it is quiet")
