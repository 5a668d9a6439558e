"""The places to which a save writes its files: a folder on disk, or the memory that the host's holder keeps.

prepare    before any rank writes                                  on disk: the hidden folder
join       this rank is about to write; it says whether it is the first rank of its host
file       one file, complete when the context ends
publish    all files of all ranks are written: the manifest makes them a checkpoint
discard    the save failed on some rank
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from herringbone_contract.checkpoint.manifest import MANIFEST, Manifest, to_json
from herringbone_contract.checkpoint.publication import clean, publish, unfinished
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import write_all
from herringbone_contract.memory import link

Result = TypeVar("Result")

# In the hidden folder while it is written: ranks that see it share the folder with the first rank.
_SHARED = ".shared"


class Target(Protocol):
    """The place of one save."""

    def prepare(self, is_first: bool) -> None:
        """Make the place, on the first rank of all."""

    def join(self, is_first_of_host: bool) -> None:
        """Take part; the first rank of a host manages what the host has of its own."""

    def file(self, name: str) -> contextlib.AbstractContextManager[int]:
        """Return a context with the descriptor of a new file, which is complete and safe when the context ends."""

    def publish(self, manifest: Callable[[], Manifest]) -> bool:
        """Make the files a checkpoint; return False on a rank that does not manage the place."""

    def discard(self, error: BaseException) -> bool:
        """Remove what was written; return whether the script need not know of the error."""

    def run(self, call: Callable[[], Result]) -> Result:
        """Call, and name the place and the remedy where the system refuses. Raises `ParallelError`."""


class FolderTarget:
    """A checkpoint in a folder; `only_savers`: nobody else saves there meanwhile."""

    def __init__(self, folder: Path, only_savers: bool, tag: str, save: str) -> None:
        self._folder, self._tag, self._only_savers = folder, tag, only_savers
        self._path = unfinished(folder, tag, save)
        # Whether this rank makes, renames and removes folders.
        self._manages = False

    def prepare(self, is_first: bool) -> None:
        self._manages = is_first
        if is_first:
            self._path.mkdir(parents=True)
            (self._path / _SHARED).touch()

    def join(self, is_first_of_host: bool) -> None:
        if not (self._path / _SHARED).exists():
            # A folder of this host's own.
            self._manages = is_first_of_host
            self._path.mkdir(parents=True, exist_ok=True)

    def file(self, name: str) -> contextlib.AbstractContextManager[int]:
        return on_disk(self._path, name)

    def publish(self, manifest: Callable[[], Manifest]) -> bool:
        if self._manages:
            (self._path / _SHARED).unlink(missing_ok=True)
            publish(self._path, self._folder, manifest())
            # Other ranks may be saving there.
            clean(self._folder, None if self._only_savers else self._tag)
        return self._manages

    def discard(self, error: BaseException) -> bool:  # noqa: ARG002
        if self._manages:
            shutil.rmtree(self._path, ignore_errors=True)
        return False

    def run(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free space there, or keep fewer checkpoints" if full else "let this user write there"
            raise ParallelError(
                f"the checkpoint {self._tag!r} cannot be written into {self._folder}: {error.strerror or error}."
                f" Earlier checkpoints stay; {remedy}, or give another folder"
            ) from error


class MemoryTarget:
    """A checkpoint in the memory of the holders; this rank's files go to the holder at `path`."""

    def __init__(self, path: str, step: int, tag: str, save: str) -> None:
        self._path, self._step, self._tag, self._save = path, step, tag, save
        self._manages = False

    def prepare(self, is_first: bool) -> None:
        """Nothing: a holder drops what an earlier save left when this one's first file comes."""

    def join(self, is_first_of_host: bool) -> None:
        self._manages = is_first_of_host

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[int]:
        descriptor = link.new_file(name)
        try:
            yield descriptor
            link.close_file(descriptor)
            link.ask(self._path, {"do": "put", "save": self._save, "step": self._step, "name": name}, descriptor)
        finally:
            os.close(descriptor)

    def publish(self, manifest: Callable[[], Manifest]) -> bool:
        if self._manages:
            with self.file(MANIFEST) as descriptor:
                write_all(descriptor, to_json(manifest()))
        return self._manages

    def discard(self, error: BaseException) -> bool:
        # Without its manifest, a save does not count, and the next one replaces it. The ranks that hear of the error
        # from another one say nothing.
        if isinstance(error.__cause__, OSError):
            print(f"herringbone: {error}", file=sys.stderr, flush=True)
        return isinstance(error, Exception)

    def run(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            raise ParallelError(
                f"step {self._step} is not kept in memory: {error.strerror or error}. Training goes on, and earlier"
                " checkpoints stay"
            ) from error


@contextlib.contextmanager
def on_disk(folder: Path, name: str) -> Iterator[int]:
    """Return a context with a new file of a folder, which is on the disk when the context ends."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
