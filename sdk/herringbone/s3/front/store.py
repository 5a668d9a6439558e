"""The folder behind the front: buckets, objects, and what S3 knows of an object in addition to its content.

<folder>/BUCKET/PATH                       an object's content, readable by any program; PATH is its key
<folder>/BUCKET/.herringbone/keys/...      an object whose key is no path, or that of a folder; see `keys`
<folder>/BUCKET/.herringbone/facts/5f/...  ETag, type and the user's metadata of one object, as JSON
<folder>/BUCKET/.herringbone/new/...       content that is still coming; it gets its name by a rename when it is whole
<folder>/BUCKET/.herringbone/uploads/ID/   parts of an upload

<folder>/.herringbone-deleted-BUCKET/      a bucket that is being deleted

Facts name the file's inode, size and time of change. A file that came into the folder by other means has none, or
facts of another file: its ETag is computed when it is first asked for. Until a new object has its name, its facts keep
those of the old one, so a crash at any moment leaves the old object or the new one, each with its facts.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import IO

import msgspec

from herringbone.s3.front.conditions import ALWAYS, Conditions, Facts
from herringbone.s3.front.keys import check_bucket_name, path_apart, path_of
from herringbone.s3.front.places import keys_apart, keys_below, open_object, place, remove_empty
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.removal import DELETED, OWN, has_files, removed
from herringbone_contract import safe_tree
from herringbone_contract.files import sync, write_whole

_READ_BYTES = 1 << 20


class _Stored(msgspec.Struct, omit_defaults=True):
    """The facts of one file, as they are stored; `before` are those of the object that this one replaces."""

    of: list[int]
    key: str
    etag: str
    meta: dict[str, str]
    before: _Stored | None = None


class Store:
    """The buckets below `folder`. One process serves a folder; its threads may share the store.

    With `new_buckets`, the first object of a bucket makes the bucket.
    """

    def __init__(self, folder: Path, *, new_buckets: bool = False) -> None:
        self._folder, self._new_buckets = folder, new_buckets
        # Held while names change, so that a file and a folder of one name do not come at once.
        self._lock = threading.RLock()

    def buckets(self) -> list[tuple[str, float]]:
        """Return the names of the buckets and the times of their creation, sorted."""
        with suppress(FileNotFoundError):
            return sorted(
                (entry.name, entry.stat().st_ctime)
                for entry in os.scandir(self._folder)
                if entry.is_dir(follow_symlinks=False) and _is_bucket_name(entry.name)
            )
        return []

    def create_bucket(self, name: str) -> None:
        path = self._folder / check_bucket_name(name)
        try:
            # The lock: a deletion that finds a file brings the bucket back.
            with self._lock:
                path.mkdir(parents=True)
        except FileExistsError:
            raise S3Error("BucketAlreadyOwnedByYou", "The bucket exists already, and you own it.", 409) from None

    def delete_bucket(self, name: str) -> None:
        with self._lock:
            bucket = self.bucket(name)
            if has_files(bucket):
                raise _not_empty()
            # By one rename, so that a crash leaves the bucket with its uploads, or none.
            deleted = self._folder / f"{DELETED}{name}"
            bucket.rename(deleted)
            sync(self._folder)
            if not removed(deleted):
                # A file has come meanwhile, by other means.
                deleted.rename(bucket)
                raise _not_empty()

    def bucket(self, name: str) -> Path:
        """Return a bucket's folder. Raises `S3Error` where there is none."""
        path = self._folder / check_bucket_name(name)
        try:
            is_bucket = stat.S_ISDIR(path.lstat().st_mode)
        except OSError:
            is_bucket = False
        if not is_bucket:
            text = f"The specified bucket does not exist: {name} would be a folder among the buckets of this service."
            raise S3Error("NoSuchBucket", text, 404)
        return path

    def target(self, name: str, *, make: bool = True) -> Path:
        """Return the folder of a bucket that gets objects, and make it where that is allowed. Raises `S3Error`."""
        path = self._folder / check_bucket_name(name)
        if not self._new_buckets or os.path.lexists(path):
            return self.bucket(name)
        if make:
            path.mkdir(exist_ok=True)
        return path

    def own_folder(self, bucket: str, kind: str) -> Path:
        """Return a folder of the front's own in a bucket that gets objects, made if it is not there."""
        path = self.target(bucket) / OWN
        for folder in (path, path / kind):
            # One by one: a bucket that another call deletes meanwhile must not come back.
            folder.mkdir(exist_ok=True)
        return path / kind

    @contextmanager
    def new_file(self, bucket: str) -> Iterator[IO[bytes]]:
        """Open a file for content that is coming; it is removed unless `keep` has given it its name."""
        folder = self.own_folder(bucket, "new")
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        try:
            # By its name, which `keep` renames.
            with open(name, "w+b") as file:  # noqa: PTH123
                yield file
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108

    def check(self, bucket: str, key: str, conditions: Conditions) -> None:
        """Raise `S3Error` where the object, as it is now, must not be replaced or removed."""
        if conditions == ALWAYS:
            return
        try:
            facts = self.facts(bucket, key)
        except S3Error as error:
            if error.code not in ("NoSuchKey", *(("NoSuchBucket",) if self._new_buckets else ())):
                raise
            facts = None
        conditions.check_write(facts)

    def keep(
        self,
        file: IO[bytes],
        bucket: str,
        key: str,
        etag: str,
        meta: dict[str, str],
        *,
        conditions: Conditions = ALWAYS,
    ) -> Facts:
        """Give a whole file the name of its key, in place of an earlier object. Raises `S3Error`."""
        # Outside of the lock as well: the ETag of a file that came by other means is computed here, and kept.
        self.check(bucket, key, conditions)
        file.flush()
        # Before the rename: after a power cut the name must not lead to a file without its content.
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o644)
        state = os.fstat(file.fileno())
        with self._lock:
            self.check(bucket, key, conditions)
            top = self.bucket(bucket)
            before = None
            with suppress(S3Error):
                earlier, before = self._find(top, key)
                earlier.close()
            with place(top, key) as (parent, target, lies_apart):
                self._write_facts(top, _Stored(_mark(state), key, etag, meta, before))
                os.replace(file.name, target, dst_dir_fd=parent)
                # The client is told that its object is stored.
                os.fsync(parent)
            if not lies_apart:
                _remove(top, path_apart(key))
        return Facts(key, state.st_size, etag, state.st_mtime, meta)

    def open(self, bucket: str, key: str) -> tuple[IO[bytes], Facts]:
        """Open an object. Raises `S3Error` where there is none."""
        top = self.bucket(bucket)
        file, stored = self._find(top, key)
        if stored is None:
            # `keep` may have replaced the object between the two looks, and the facts are those of the next one.
            file.close()
            with self._lock:
                file, stored = self._find(top, key)
        try:
            state = os.fstat(file.fileno())
            stored = stored or _Stored(_mark(state), key, self._computed_etag(top, key, file), {})
            return file, Facts(key, state.st_size, stored.etag, state.st_mtime, stored.meta)
        except BaseException:
            file.close()
            raise

    def delete(self, bucket: str, key: str, conditions: Conditions = ALWAYS) -> None:
        """Remove an object, and the folders that are empty then; one that does not exist is no error.

        Raises `S3Error` where the conditions do not hold.
        """
        self.check(bucket, key, conditions)
        with self._lock:
            self.check(bucket, key, conditions)
            top = self.bucket(bucket)
            # Both: a file that came by other means hides an object that lies apart.
            removed_places = [_remove(top, path) for path in _places(key)]
            if any(removed_places):
                self._facts_path(top, key).unlink(missing_ok=True)

    def keys(self, bucket: str, prefix: str = "", after: str = "", *, by_folder: bool = False) -> Iterator[str]:
        """Yield the keys that begin with `prefix` and come behind `after`, in the order of their UTF-8 bytes.

        With `by_folder`, the keys behind the next slash are one entry that ends with the slash.
        """
        top = self.bucket(bucket)
        apart = sorted(keys_apart(top, prefix), key=str.encode)
        keys = merge(
            keys_below(top, prefix, after, by_folder=by_folder), (key for key in apart if key > after), key=str.encode
        )
        # A crash may have left an earlier object apart.
        return (key for key, _ in groupby(keys))

    def facts(self, bucket: str, key: str) -> Facts:
        """Return what is known of an object. Raises `S3Error` where there is none."""
        file, facts = self.open(bucket, key)
        file.close()
        return facts

    def exists(self, bucket: str, key: str) -> bool:
        """Report whether there is an object. Raises `S3Error` where there is no bucket."""
        try:
            self._find(self.bucket(bucket), key)[0].close()
        except S3Error as error:
            if error.code != "NoSuchKey":
                raise
            return False
        return True

    def _find(self, top: Path, key: str) -> tuple[IO[bytes], _Stored | None]:
        """Open an object's file, and read its facts: None if there are none of this file. Raises `S3Error`."""
        for path in _places(key):
            if (file := open_object(top, path)) is not None:
                stored: _Stored | None = None
                with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                    stored = msgspec.json.decode(self._facts_path(top, key).read_bytes(), type=_Stored)
                mark = _mark(os.fstat(file.fileno()))
                while stored is not None and stored.of != mark:
                    stored = stored.before
                if stored is not None:
                    stored.before = None
                return file, stored
        raise S3Error("NoSuchKey", "The specified key does not exist.", 404)

    def _computed_etag(self, top: Path, key: str, file: IO[bytes]) -> str:
        """Compute the ETag of a file that came by other means, and store it while the file has its name."""
        state = os.fstat(file.fileno())
        digest = hashlib.md5(usedforsecurity=False)
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
        file.seek(0)
        with self._lock, suppress(OSError, S3Error):
            named, _ = self._find(top, key)
            with named:
                if _mark(os.fstat(named.fileno())) == _mark(state):
                    self._write_facts(top, _Stored(_mark(state), key, digest.hexdigest(), {}))
        return digest.hexdigest()

    def _write_facts(self, top: Path, facts: _Stored) -> None:
        path = self._facts_path(top, facts.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(facts), synced=True)

    @staticmethod
    def _facts_path(top: Path, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return top / OWN / "facts" / digest[:2] / f"{digest}.json"


def _not_empty() -> S3Error:
    return S3Error("BucketNotEmpty", "The bucket you tried to delete is not empty.", 409)


def _places(key: str) -> list[str]:
    """Return the paths where the object of a key may lie, the first one first."""
    path = path_of(key)
    return [path_apart(key)] if path is None else [path, path_apart(key)]


def _remove(top: Path, path: str) -> bool:
    """Remove the file of an object, and the folders that are empty then. Return False where there is none."""
    folder, _, name = path.rpartition("/")
    try:
        with safe_tree.folder(top, folder) as parent:
            if not stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode):
                return False
            os.unlink(name, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        # No such object; a link on the way is none either.
        return False
    remove_empty(top, folder)
    return True


def _mark(state: os.stat_result) -> list[int]:
    return [state.st_ino, state.st_size, state.st_mtime_ns]


def _is_bucket_name(name: str) -> bool:
    try:
        return check_bucket_name(name) == name
    except S3Error:
        return False
