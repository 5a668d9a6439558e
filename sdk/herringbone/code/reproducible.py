"""Write archives whose bytes depend on the files alone, not on the user, the time, the machine or the checkout."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def zipped(raw: IO[bytes], *, level: int) -> gzip.GzipFile:
    """Return a gzip writer onto `raw` whose header holds neither a file name nor a time."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=level, mtime=0)


def write_tar(files: Mapping[str, Path], onto: IO[bytes]) -> int:
    """Write a tar of files under their names, in the given order, as a stream; return the bytes of their content.

    Raises `OSError` for a full disk, or a file that shrinks meanwhile.
    """
    content_bytes = 0
    with tarfile.open(fileobj=onto, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files.items():
            with path.open("rb") as content:
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
