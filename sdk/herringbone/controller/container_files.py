"""Copies the files of a container to this machine, for an engine that cannot mount folders of this machine."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from herringbone.engine.client import Engine, EngineRefusal
from herringbone.jobs.archive_members import extract, problem
from herringbone_contract.errors import ArchiveError

_NOT_FOUND = 404
_BLOCK_BYTES = 512
Say = Callable[[str], None]


def fetch(engine: Engine, container: str, inside: str, into: Path, say: Say) -> None:
    """Copy a folder of a container into a folder of this machine; a folder that does not exist is skipped.

    >>> fetch(engine, "digits-1-algo-1", "/opt/ml/model", Path("model"), print)      # doctest: +SKIP

    Only files, folders and links that stay inside the folder are copied; `say` gets a message about all others. Raises
    `ArchiveError` when the connection to the engine breaks.
    """
    try:
        with engine.download(container, inside) as stream:
            unpack(stream, into, say)
    except EngineRefusal as error:
        if error.status != _NOT_FOUND:
            raise
    except (tarfile.TarError, OSError) as error:
        raise ArchiveError(f"{inside} of the container could not be fetched into {into}: {error}") from error


def unpack(stream: IO[bytes], into: Path, say: Say) -> None:
    """Unpack the tar of one folder into `into`. Raises `tarfile.TarError` when the tar is incomplete."""
    whole = _TailReader(stream)
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=whole, mode="r|") as archive:  # type: ignore[call-overload]
        for member in _below(archive):
            reason = problem(member, into)
            # The members come from the job's own script, so none of them is trusted.
            if reason is None:
                extract(archive, member, into)
            else:
                say(f"{member.name} is left out: {reason}")
    # A complete tar ends with two blocks of zeros. `tarfile` also accepts a stream that breaks off between members.
    while whole.read(1 << 16):
        pass
    if whole.tail != bytes(2 * _BLOCK_BYTES):
        raise tarfile.ReadError("the archive ends too early")


class _TailReader:
    """A stream that remembers its last two blocks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.tail = b""

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self.tail = (self.tail + piece)[-2 * _BLOCK_BYTES :]
        return piece


def _below(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members, with names relative to the folder that was archived."""
    for member in archive:
        member.name = member.name.partition("/")[2]
        if member.islnk():
            member.linkname = member.linkname.partition("/")[2]
        if member.name:
            yield member
