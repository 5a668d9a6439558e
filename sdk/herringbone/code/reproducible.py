"""Write archives whose bytes depend on the files alone, not on the user, the time, the machine or the checkout."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

Opener = Callable[[], IO[bytes]]


def opener(path: Path) -> Opener:
    """Return a function that opens a file of the user's, links followed."""
    return lambda: path.open("rb")


class Link(NamedTuple):
    """A symbolic link in an archive: `target` is relative to the link's own folder."""

    target: str


def zipped(raw: IO[bytes], *, level: int) -> gzip.GzipFile:
    """Return a gzip writer onto `raw` whose header holds neither a file name nor a time."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=level, mtime=0)


def write_tar(files: Mapping[str, Opener | Link], onto: IO[bytes]) -> int:
    """Write a tar of files and links under their names, in the given order; return the bytes of the files' content.

    Raises `OSError` for a full disk, or a file that shrinks meanwhile.
    """
    content_bytes = 0
    with tarfile.open(fileobj=onto, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, source in files.items():
            if isinstance(source, Link):
                archive.addfile(_link(name, source))
                continue
            with source() as content:
                # The size comes from the open file, so it stays right if another file takes the path meanwhile.
                info = _member(name, os.fstat(content.fileno()))
                archive.addfile(info, content)
            content_bytes += info.size
    return content_bytes


def _member(name: str, status: os.stat_result) -> tarfile.TarInfo:
    # Owner and time stay 0, and the mode keeps the executable bit only: the rest differs between checkouts.
    info = tarfile.TarInfo(name)
    info.size = status.st_size
    info.mode = 0o755 if status.st_mode & 0o100 else 0o644
    return info


def _link(name: str, link: Link) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, link.target, 0o777
    return info
