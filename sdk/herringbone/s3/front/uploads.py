"""Multipart uploads: parts are files, and the object is their concatenation, which appears whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple
from weakref import WeakValueDictionary

from herringbone.s3.front.conditions import ALWAYS, Conditions, Facts
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.removal import OWN
from herringbone.s3.front.store import Store
from herringbone_contract.files import sync, write_whole

MAX_PART = 10_000
# All parts but the last one.
MIN_PART_BYTES = 5 << 20
_COPY_BYTES = 1 << 20
_ID = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"(\d{5})-([0-9a-f]{32})")


class Part(NamedTuple):
    """A part that has arrived; `etag` is its MD5."""

    number: int
    etag: str
    size: int
    path: Path


class Uploads:
    """The uploads of a store's buckets."""

    def __init__(self, store: Store, *, min_part_bytes: int = MIN_PART_BYTES) -> None:
        self._store, self._min_part_bytes = store, min_part_bytes
        # Of each upload that is being changed: a client may send a request twice. Other uploads go on, because the copy
        # of a large one takes minutes.
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._lock = Lock()

    def _changing(self, upload: str) -> Lock:
        with self._lock:
            return self._locks.setdefault(upload, Lock())

    def create(self, bucket: str, key: str, meta: dict[str, str]) -> str:
        """Begin an upload and return its id."""
        upload = os.urandom(16).hex()
        folder = self._store.own_folder(bucket, "uploads") / upload
        folder.mkdir()
        write_whole(folder / "upload.json", json.dumps({"key": key, "meta": meta}).encode(), synced=True)
        return upload

    def check(self, bucket: str, key: str, upload: str) -> None:
        """Raise `S3Error` where there is no such upload of the key."""
        self._upload(bucket, key, upload)

    def add(self, bucket: str, key: str, upload: str, number: int, file: IO[bytes], etag: str) -> None:
        """Keep a file of `Store.new_file` as a part; an earlier part of that number is gone then."""
        file.flush()
        # `complete` takes a part for what its name says.
        sync(file.name)
        with self._changing(upload):
            folder, _ = self._upload(bucket, key, upload)
            os.replace(file.name, folder / f"{number:05}-{etag}")  # noqa: PTH105
            sync(folder)
            for part in self._parts(folder):
                if part.number == number and part.etag != etag:
                    part.path.unlink(missing_ok=True)

    def parts(self, bucket: str, key: str, upload: str) -> list[Part]:
        """Return the parts that have arrived, by number."""
        return self._parts(self._upload(bucket, key, upload)[0])

    def all(self, bucket: str, prefix: str = "") -> list[tuple[str, str]]:
        """Return key and id of each upload of a bucket that is not complete."""
        uploads = []
        for folder in (self._store.bucket(bucket) / OWN / "uploads").glob("*"):
            with suppress(OSError, ValueError):
                key = json.loads((folder / "upload.json").read_text())["key"]
                if key.startswith(prefix):
                    uploads.append((key, folder.name))
        return sorted(uploads)

    def complete(
        self,
        bucket: str,
        key: str,
        upload: str,
        wanted: Sequence[tuple[int, str]],
        *,
        size: str | None = None,
        conditions: Conditions = ALWAYS,
    ) -> Facts:
        """Make the object of the parts that the client names, each by number and ETag. Raises `S3Error`.

        `size` is what the client says about the whole. An upload whose conditions do not hold stays. A request that
        comes again, because its answer was lost, gets the same answer.
        """
        etag = _etag_of(wanted)
        with self._changing(upload):
            try:
                folder, stored = self._upload(bucket, key, upload)
            except S3Error:
                with suppress(S3Error):
                    facts = self._store.facts(bucket, key)
                    if facts.etag == etag:
                        return facts
                raise
            self._store.check(bucket, key, conditions)
            parts = self._wanted(folder, wanted)
            if size is not None and size != str(sum(part.size for part in parts)):
                raise S3Error("InvalidRequest", f"The parts have {sum(part.size for part in parts)} bytes, not {size}.")
            with self._store.new_file(bucket) as target:
                for part in parts:
                    with part.path.open("rb") as source:
                        shutil.copyfileobj(source, target, _COPY_BYTES)
                facts = self._store.keep(target, bucket, key, etag, stored["meta"], conditions=conditions)
            self._remove(folder)
        return facts

    def abort(self, bucket: str, key: str, upload: str) -> None:
        """Remove an upload with its parts."""
        with self._changing(upload):
            self._remove(self._upload(bucket, key, upload)[0])

    @staticmethod
    def _remove(folder: Path) -> None:
        """Remove an upload: by one rename, because a crash in between must not leave some of its parts."""
        removed = folder.parents[1] / "new" / folder.name
        removed.parent.mkdir(exist_ok=True)
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _wanted(self, folder: Path, wanted: Sequence[tuple[int, str]]) -> list[Part]:
        if not wanted:
            raise S3Error("MalformedXML", "You must specify at least one part.")
        numbers = [number for number, _ in wanted]
        if numbers != sorted(set(numbers)):
            raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
        arrived = {(part.number, part.etag): part for part in self._parts(folder)}
        if not all(pair in arrived for pair in wanted):
            raise S3Error("InvalidPart", "One or more of the specified parts could not be found, or has another ETag.")
        parts = [arrived[pair] for pair in wanted]
        if any(part.size < self._min_part_bytes for part in parts[:-1]):
            raise S3Error("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size.")
        return parts

    def _upload(self, bucket: str, key: str, upload: str) -> tuple[Path, dict[str, Any]]:
        folder = self._store.bucket(bucket) / OWN / "uploads" / upload
        stored: dict[str, Any] = {}
        # The id becomes a part of a path.
        if _ID.fullmatch(upload) is not None:
            with suppress(OSError, ValueError):
                stored = json.loads((folder / "upload.json").read_text())
        if stored.get("key") != key:
            raise no_upload()
        return folder, stored

    @staticmethod
    def _parts(folder: Path) -> list[Part]:
        parts = []
        for path in folder.iterdir():
            # A part that comes again takes the place of the earlier one.
            with suppress(FileNotFoundError):
                if (match := _PART.fullmatch(path.name)) is not None:
                    parts.append(Part(int(match[1]), match[2], path.stat().st_size, path))
        return sorted(parts)


def no_upload() -> S3Error:
    return S3Error("NoSuchUpload", "The specified multipart upload does not exist.", 404)


def _etag_of(parts: Sequence[tuple[int, str]]) -> str:
    """Return the ETag of an object that was made of parts; "" for parts whose ETags are none."""
    try:
        digest = hashlib.md5(b"".join(bytes.fromhex(etag) for _, etag in parts), usedforsecurity=False)
    except ValueError:
        return ""
    return f"{digest.hexdigest()}-{len(parts)}"
