"""Brings a model from S3: one archive, or what lies below a prefix, each object whole and as it was seen."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.progress import Progress
from herringbone_contract.errors import ArchiveError, AwsError, InputError

_ARCHIVE = ".tar.gz"
_PART_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20
# An object that was sent in one piece, and not encrypted by KMS, has its MD5 as its tag.
_MD5 = re.compile(r'"([0-9a-f]{32})"')


def fetch_model(session: AwsSession, address: str, into: Path, *, progress: Progress) -> Path:
    """Fetch what `S3ModelArtifacts` names into a folder; return the archive, or the folder of an uncompressed model.

    >>> fetch_model(session, "s3://mine/digits-1/output/model.tar.gz", Path("new"), progress=Progress())
    ... # doctest: +SKIP
    PosixPath('new/model.tar.gz')

    Raises `InputError` when there is nothing at the address, `ArchiveError` when what arrived is not what was sent.
    """
    bucket, _, key = address.removeprefix("s3://").partition("/")
    fetcher = _Fetcher(session, bucket)
    if key.endswith(_ARCHIVE):
        head = fetcher.look_at(key)
        with progress.downloading("the model", head["ContentLength"]) as came:
            fetcher.fetch(key, head, into / "model.tar.gz", came)
        return into / "model.tar.gz"
    prefix = f"{key.rstrip('/')}/"
    entries = fetcher.below(prefix)
    if not entries:
        raise InputError(f"{address}: nothing lies there; was the model moved or deleted?")
    folder = into / "model"
    with progress.downloading("the model", sum(entry["Size"] for entry in entries)) as came:
        for entry in entries:
            fetcher.fetch(entry["Key"], entry, _inside(folder, entry["Key"].removeprefix(prefix)), came)
    return folder


class _Fetcher:
    def __init__(self, session: AwsSession, bucket: str) -> None:
        self._session = session
        self._bucket = bucket

    def look_at(self, key: str) -> dict[str, Any]:
        try:
            with self._session.asking(f"to find the model s3://{self._bucket}/{key}"):
                head: dict[str, Any] = self._session.client("s3").head_object(Bucket=self._bucket, Key=key)
        except AwsError as error:
            if error.code in ("404", "NoSuchKey", "NoSuchBucket"):
                raise InputError(f"s3://{self._bucket}/{key}: nothing lies there; was the model moved?") from None
            raise
        return head

    def below(self, prefix: str) -> list[dict[str, Any]]:
        with self._session.asking(f"to list the model s3://{self._bucket}/{prefix}"):
            pages = self._session.client("s3").get_paginator("list_objects_v2")
            return [
                entry
                for page in pages.paginate(Bucket=self._bucket, Prefix=prefix)
                for entry in page.get("Contents", ())
                if not entry["Key"].endswith("/")
            ]

    def fetch(self, key: str, seen: dict[str, Any], path: Path, came: Callable[[int], None]) -> None:
        """Fetch an object that was `seen` with a size and a tag."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._session.asking(f"to fetch s3://{self._bucket}/{key}"):
            config = self._session.transfer_config(part_bytes=_PART_BYTES)
            client = self._session.client("s3")
            client.download_file(self._bucket, key, str(path), Callback=came, Config=config)
        wanted = seen.get("ContentLength", seen.get("Size"))
        if (size := path.stat().st_size) != wanted:
            raise ArchiveError(f"s3://{self._bucket}/{key}: {size} of {wanted} bytes arrived; fetch it again")
        tag = _MD5.fullmatch(seen["ETag"])
        if tag and seen.get("ServerSideEncryption") != "aws:kms" and _md5(path) != tag[1]:
            raise ArchiveError(f"s3://{self._bucket}/{key}: what arrived has another checksum; fetch it again")


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/"):
        raise ArchiveError(f"model: object {name!r} would land outside of its folder; fetch it by hand")
    return folder.joinpath(*parts)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
