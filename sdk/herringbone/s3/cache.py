"""The objects of S3 that jobs of this machine have read: each is downloaded once, whoever asks first.

<home>/cache/s3/5f/5f3a...            an object, read-only; its time of change is the object's
<home>/cache/s3/5f/5f3a....partial    a download that runs, locked by the process that writes it

A job gets hard links, so an object that was evicted stays as long as a job has it. A job that writes into its input
changes the file's time, and the next job downloads the object again. Jobs that have the file at that moment see the
change, because they share it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from herringbone.s3.names import StoredObject
from herringbone.system.sizes import shown_bytes
from herringbone_contract.errors import InputError, OptionError
from herringbone_contract.files import try_locked

if TYPE_CHECKING:
    from herringbone.s3.bucket import Buckets

LIMIT_VARIABLE = "HERRINGBONE_S3_CACHE_GB"
_DEFAULT_GB = 100.0
_THREADS = 8
_READ_ONLY = 0o444
_PARTIAL = ".partial"
# Room that a download leaves free for everything else of the machine.
_RESERVE_BYTES = 64 << 20

_POLL_SECONDS = 0.1

Count = Callable[[int], None]
_Name = TypeVar("_Name")


class ObjectCache:
    """The cache below `folder`, of at most `limit` bytes once the jobs that use its objects are gone.

    >>> cache = ObjectCache(home.cache / "s3", limit=100 << 30)                    # doctest: +SKIP
    >>> cache.link({"a.csv": stored}, Path("job/s3/train"), source, count)         # doctest: +SKIP
    """

    def __init__(self, folder: Path, *, limit: int, free_bytes: Callable[[Path], int] | None = None) -> None:
        self._folder, self._limit, self._free_bytes = (
            folder,
            limit,
            free_bytes or (lambda folder: shutil.disk_usage(folder).free),
        )

    def missing(self, objects: list[StoredObject], source: Buckets) -> int:
        """Return the bytes of the objects that are not here yet."""
        return sum(stored.size for stored in set(objects) if not self._is_here(self._path(stored, source), stored))

    def make_room(self, objects: list[StoredObject], source: Buckets) -> int:
        """Make room for the objects that are not here, and return their bytes.

        Where the disk is too full for them, downloads that were cut go first, and then objects that no job has, the
        least recently used ones first. Raises `InputError` where that is not enough.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        needed = self.missing(objects, source)
        if needed and needed + _RESERVE_BYTES > self._free_bytes(self._folder):
            keep = {self._path(stored, source) for stored in objects}
            unused = [entry for entry in self._unused() if entry[2] not in keep]
            _remove_oldest(unused, needed + _RESERVE_BYTES - self._free_bytes(self._folder))
        if needed and needed + _RESERVE_BYTES > (free := self._free_bytes(self._folder)):
            raise InputError(
                f"the channels have {shown_bytes(needed)} that are not on this machine yet, and the disk of "
                f"{self._folder} has {shown_bytes(free)} left; make room, or set HERRINGBONE_HOME to a larger disk"
            )
        return needed

    def link(self, files: dict[str, StoredObject], into: Path, source: Buckets, count: Count) -> None:
        """Download what is missing, several objects at once, and link all files into a new folder.

        Raises the errors of the source and `OSError`; the downloads that are complete stay for the next call.
        """
        into.mkdir(parents=True)
        for folder in sorted({(into / name).parent for name in files}):
            folder.mkdir(parents=True, exist_ok=True)
        fetch_all(lambda name, counted: self._link(files[name], into / name, source, counted), files, count)

    def evict(self) -> int:
        """Remove the objects that were used least recently until the rest fits the limit; return the removed bytes.

        An object that a job still has frees no room, so it stays and does not count.
        """
        entries = self._unused()
        return _remove_oldest(entries, sum(size for _, size, _ in entries) - self._limit)

    def _unused(self) -> list[tuple[int, int, Path]]:
        """Return time of use, size and path of each object that no job has, after removing downloads that were cut."""
        entries = []
        for path in self._folder.glob("*/*"):
            with suppress(FileNotFoundError):
                state = path.stat()
                if path.suffix == _PARTIAL:
                    _remove_abandoned(path)
                elif state.st_nlink == 1:
                    entries.append((state.st_atime_ns, state.st_size, path))
        return entries

    def _link(self, stored: StoredObject, target: Path, source: Buckets, count: Count) -> None:
        path = self._path(stored, source)
        while True:
            if not self._is_here(path, stored):
                self._download(path, stored, source, count)
            try:
                # The time of use alone: the time of change says that the content is the object's.
                os.utime(path, ns=(time.time_ns(), stored.modified * 1_000_000_000))
                os.link(path, target)
            except FileNotFoundError:
                if not target.parent.is_dir():
                    # The job's folder was removed.
                    raise
                # Another job evicted it at this moment.
                count(0)
                continue
            return

    def _download(self, path: Path, stored: StoredObject, source: Buckets, count: Count) -> None:
        """Download an object, or wait for the process that does."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(path.name + _PARTIAL)
        # The kernel frees the lock when its holder dies, and the next one starts over.
        while (file := try_locked(partial)) is None:
            # Raises once this call is to end: another process may hold the lock for hours, and Ctrl-C must not wait.
            count(0)
            time.sleep(_POLL_SECONDS)
        with file:
            if self._is_here(path, stored):
                partial.unlink()
                return
            file.truncate(0)
            _fill(partial, stored, source, count)
            partial.rename(path)
            # After the rename: nobody could go on with a read-only file of a process that died before it.
            path.chmod(_READ_ONLY)

    def _path(self, stored: StoredObject, source: Buckets) -> Path:
        identity = "\0".join((source.endpoint, stored.bucket, stored.key, stored.etag, str(stored.size)))
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / digest[:2] / digest

    @staticmethod
    def _is_here(path: Path, stored: StoredObject) -> bool:
        try:
            state = path.stat()
        except FileNotFoundError:
            return False
        return state.st_size == stored.size and state.st_mtime_ns == stored.modified * 1_000_000_000


def fetch_all(fetch: Callable[[_Name, Count], None], names: Iterable[_Name], count: Count) -> None:
    """Call `fetch` for each name, several at once; after an error or Ctrl-C, end the calls that run.

    Each call reports its bytes to the function that it gets, which raises once the others are to end.
    """
    ended = threading.Event()

    def counted(num_bytes: int) -> None:
        if ended.is_set():
            raise InterruptedError("another download has failed, or the user has ended them all")
        count(num_bytes)

    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [pool.submit(fetch, name, counted) for name in names]
        try:
            # Not in their order: a long download must not hide the failure of another.
            for call in wait(calls, return_when=FIRST_EXCEPTION).done:
                call.result()
        except BaseException:
            # Otherwise leaving the block would wait for all downloads before the error appears.
            ended.set()
            pool.shutdown(cancel_futures=True)
            raise


def cache_limit(environ: dict[str, str] | os._Environ[str]) -> int:
    """Return the cache's limit in bytes. Raises `OptionError` for a setting that is no number.

    >>> cache_limit({}), cache_limit({"HERRINGBONE_S3_CACHE_GB": "0.5"})
    (100000000000, 500000000)
    """
    text = environ.get(LIMIT_VARIABLE)
    try:
        number = _DEFAULT_GB if text is None else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise OptionError(f"{LIMIT_VARIABLE}={text}: expected a number of GB, 0 or more")
    return int(number * 1e9)


def _remove_oldest(entries: Iterable[tuple[int, int, Path]], excess: int) -> int:
    removed = 0
    for _, size, path in sorted(entries):
        if removed >= excess:
            break
        path.unlink(missing_ok=True)
        removed += size
    return removed


def _fill(partial: Path, stored: StoredObject, source: Buckets, count: Count) -> None:
    # A second descriptor: boto writes parts at their places, and a file opened to append would ignore the places.
    with partial.open("r+b") as content:
        source.download(stored, content, count)
    os.utime(partial, ns=(time.time_ns(), stored.modified * 1_000_000_000))


def _remove_abandoned(partial: Path) -> None:
    """Remove a download whose process has died."""
    if (file := try_locked(partial)) is not None:
        with file:
            partial.unlink()
