"""Archives whose bytes come from the files alone: not from who packs them, when, where and in which checkout."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def zipped(raw: IO[bytes], *, level: int) -> gzip.GzipFile:
    """Return what compresses onto `raw`, without a name and a time of its own."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=level, mtime=0)


def write_tar(files: Mapping[str, Path], onto: IO[bytes]) -> int:
    """Write a tar of files under their names, in that order, as a stream; return the bytes of their content.

    Raises `OSError` for a full disk, or a file that shrinks meanwhile.
    """
    content_bytes = 0
    with tarfile.open(fileobj=onto, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files.items():
            with path.open("rb") as content:
                info = _member(name, os.fstat(content.fileno()))
                archive.addfile(info, content)
            content_bytes += info.size
    return content_bytes


def _member(name: str, status: os.stat_result) -> tarfile.TarInfo:
    # Owner and time stay at 0, and of the mode only what git keeps: they differ where the content does not.
    info = tarfile.TarInfo(name)
    info.size = status.st_size
    info.mode = 0o755 if status.st_mode & 0o100 else 0o644
    return info
