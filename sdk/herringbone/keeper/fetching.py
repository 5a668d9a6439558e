"""Brings what a container wrote to this machine, where its folders are not mounted."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from herringbone.engine import Engine, EngineRefusal
from herringbone_spec.errors import ArchiveError

_NOT_FOUND = 404
_BLOCK_BYTES = 512
Say = Callable[[str], None]


def fetch(engine: Engine, container: str, inside: str, into: Path, say: Say) -> None:
    """Copy a folder of a container, or what of it is there, into a folder here.

    >>> fetch(engine, "digits-1-algo-1", "/opt/ml/model", Path("model"), print)      # doctest: +SKIP

    Only files, folders and links that stay inside arrive; `say` is told of others. Raises `ArchiveError` when the
    engine goes away half way.
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
    """Unpack the tar of one folder into `into`. Raises `tarfile.TarError` when it is cut short."""
    whole = _Whole(stream)
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=whole, mode="r|") as archive:  # type: ignore[call-overload]
        for member in _below(archive):
            problem = _problem(member, into)
            if problem is None:
                # Whose it was there says nothing here; and we must be able to read and remove it.
                member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
                member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
                archive.extract(member, into, **_TRUSTED)
            else:
                say(f"{member.name} is left out: {problem}")
    # After the last member come two blocks of zeros: without them, the rest is missing.
    while whole.read(1 << 16):
        pass
    if whole.tail != bytes(2 * _BLOCK_BYTES):
        raise tarfile.ReadError("the archive ends too early")


# Checked by ourselves: Python 3.10 before its twelfth patch has no filters.
_TRUSTED = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}


class _Whole:
    """A stream that remembers how it ended."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.tail = b""

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self.tail = (self.tail + piece)[-2 * _BLOCK_BYTES :]
        return piece


def _below(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members, named from within the folder that the archive is of."""
    for member in archive:
        member.name = member.name.partition("/")[2]
        if member.islnk():
            member.linkname = member.linkname.partition("/")[2]
        if member.name:
            yield member


def _problem(member: tarfile.TarInfo, into: Path) -> str | None:
    """Say why a member must not be unpacked, None when it may."""
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return "it is neither file nor folder nor link"
    root = into.resolve()
    if os.path.isabs(member.name) or not (into / member.name).parent.resolve().is_relative_to(root):  # noqa: PTH117
        return "it would land outside"
    if member.issym() and not ((into / member.name).parent / member.linkname).resolve().is_relative_to(root):
        return f"it is a link to {member.linkname}, outside"
    if member.islnk() and not (into / member.linkname).resolve().is_relative_to(root):
        return f"it is a link to {member.linkname}, outside"
    return None
