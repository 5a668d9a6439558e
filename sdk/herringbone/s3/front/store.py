"""The folder behind the front: buckets, objects, and what S3 knows of an object in addition to its content.

<folder>/BUCKET/PATH                       an object's content, readable by any program; `keys` makes the path
<folder>/BUCKET/.herringbone/facts/5f/...  ETag, type and the user's metadata of one object, as JSON
<folder>/BUCKET/.herringbone/new/...       content that is still coming; it gets its name by a rename when it is whole
<folder>/BUCKET/.herringbone/uploads/ID/   parts of an upload

<folder>/.herringbone-deleted-BUCKET/      a bucket that is being deleted

Facts name the file's inode, size and time of change. A file that came into the folder by other means has none, or
facts of another file: its ETag is computed when it is first asked for. Until a new object has its name, its facts keep
those of the old one, so a crash at any moment leaves the old object or the new one, each with its facts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from herringbone.s3.front.conditions import ALWAYS, Conditions, Facts
from herringbone.s3.front.keys import FOLDER_EXISTS, check_bucket_name, is_own, key_part, path_of
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.removal import DELETED, OWN, has_files, removed
from herringbone_contract import safe_tree
from herringbone_contract.files import sync, write_whole

_READ_BYTES = 1 << 20
_LAST = "\U0010ffff"


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

    @contextmanager
    def new_file(self, bucket: str) -> Iterator[IO[bytes]]:
        """Open a file for content that is coming; it is removed unless `keep` has given it its name."""
        folder = self.target(bucket) / OWN / "new"
        folder.mkdir(parents=True, exist_ok=True)
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
            with _place(top, path_of(key)) as (parent, target):
                self._write_facts(top, _Stored(_mark(state), key, etag, meta, before))
                os.replace(file.name, target, dst_dir_fd=parent)
                # The client is told that its object is stored.
                os.fsync(parent)
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
            for path in _places(path_of(key)):
                folder, _, name = path.rpartition("/")
                try:
                    with safe_tree.folder(top, folder) as parent:
                        if not stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode):
                            continue
                        os.unlink(name, dir_fd=parent)
                except (FileNotFoundError, NotADirectoryError):
                    # No such object; a link on the way is none either.
                    continue
                self._facts_path(top, key).unlink(missing_ok=True)
                _remove_empty(top, folder)

    def keys(self, bucket: str, prefix: str = "", after: str = "", *, by_folder: bool = False) -> Iterator[str]:
        """Yield the keys that begin with `prefix` and come behind `after`, in the order of their UTF-8 bytes.

        With `by_folder`, the keys behind the next slash are one entry that ends with the slash.
        """
        top = self.bucket(bucket)
        return _walk(top, "", "", prefix, after, by_folder)

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
        for path in _places(path_of(key)):
            if (file := _open(top, path)) is not None:
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


@contextmanager
def _place(top: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder where the file of a path goes, made if it is not there; yield it with the file's name.

    The folder is opened part by part, without following links: a job that may write into the bucket can replace a
    folder by a link at any moment. The caller holds the lock.
    """
    *parts, name = path.split("/")
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            mode = _mode(part, folder)
            if stat.S_ISREG(mode):
                # An object has the name that is a folder from now on.
                os.rename(part, part + FOLDER_EXISTS, src_dir_fd=folder, dst_dir_fd=folder)
            elif mode and not stat.S_ISDIR(mode):
                raise S3Error("InvalidRequest", f"{part} is a link in the folder of the bucket.", 409)
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, name + FOLDER_EXISTS if stat.S_ISDIR(_mode(name, folder)) else name
    finally:
        os.close(folder)


def _mode(name: str, folder: int) -> int:
    """Return the mode of an entry of an open folder; 0 where there is none."""
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return 0


def _remove_empty(top: Path, path: str) -> None:
    """Remove the folders of a path that are empty, from the last one up."""
    while path:
        above, _, name = path.rpartition("/")
        try:
            with safe_tree.folder(top, above) as parent:
                os.rmdir(name, dir_fd=parent)
        except OSError:
            return
        path = above


def _not_empty() -> S3Error:
    return S3Error("BucketNotEmpty", "The bucket you tried to delete is not empty.", 409)


def _listed(top: Path, inside: str) -> list[tuple[str, bool]]:
    """Return the names of folders and files in a folder of a bucket, each with True for a folder."""
    try:
        # Part by part: a job that may write here can replace a folder by a link at any moment.
        with safe_tree.folder(top, inside) as folder, os.scandir(folder) as listing:
            return [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in listing
                if not is_own(entry.name)
                and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            ]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        # Removed or replaced since its folder was listed.
        return []


def _walk(top: Path, inside: str, start: str, prefix: str, after: str, by_folder: bool) -> Iterator[str]:
    """Yield the keys below the folder `inside` of a bucket; they begin with `start`."""
    entries: dict[str, str | None] = {}
    for name, is_folder in _listed(top, inside):
        key = start + key_part(name)
        if is_folder:
            entries[f"{key}/"] = f"{inside}{name}/"
        else:
            # A key whose last part is empty ends with a slash, as a folder does; it comes before the folder's keys.
            entries.setdefault(key, None)
    # Surrogates stand for names that are no UTF-8, which no key can mean.
    for key in sorted((key for key in entries if _is_text(key)), key=str.encode):
        below = entries[key]
        if below is None:
            if key > after and key.startswith(prefix):
                yield key
        elif not (key.startswith(prefix) or prefix.startswith(key)) or f"{key}{_LAST}" <= after:
            continue
        elif by_folder and key.startswith(prefix) and key != prefix:
            # Behind a key in the folder, the folder is an entry only for the rest of its keys.
            within = after if after.startswith(key) and after != key else ""
            if (key > after or within) and next(_walk(top, below, key, key, within, False), None) is not None:
                yield key
        else:
            yield from _walk(top, below, key, prefix, after, by_folder)


def _places(path: str) -> tuple[str, str]:
    return path, path + FOLDER_EXISTS


def _open(top: Path, path: str) -> IO[bytes] | None:
    """Open a file without following a link; None where there is no regular file."""
    try:
        return safe_tree.open_file(top, path)
    except OSError:
        return None


def _mark(state: os.stat_result) -> list[int]:
    return [state.st_ino, state.st_size, state.st_mtime_ns]


def _is_bucket_name(name: str) -> bool:
    try:
        return check_bucket_name(name) == name
    except S3Error:
        return False


def _is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
