"""Write archives whose bytes depend on the files alone, not on the user, the time, the machine or the checkout."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer

Opener = Callable[[], IO[bytes]]


class Link(NamedTuple):
    """A symbolic link in an archive: `target` is relative to the link's own folder."""

    target: str


# To zlib: write a gzip header, which then holds neither a file name nor a time.
_GZIP = 31


@contextmanager
def zipped(raw: IO[bytes], *, level: int) -> Iterator[io.RawIOBase]:
    """Give a file that writes gzip onto `raw`; after an error, for example a full disk, nothing more is written.

    `gzip.GzipFile` has buffered since Python 3.12: after an error it writes again when it is collected.
    """
    writer = _GzipWriter(raw, level)
    yield writer
    writer.finish()


class _GzipWriter(io.RawIOBase):
    def __init__(self, raw: IO[bytes], level: int) -> None:
        self._raw, self._compressor = raw, zlib.compressobj(level, wbits=_GZIP)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        self._raw.write(self._compressor.compress(data))
        return memoryview(data).nbytes

    def finish(self) -> None:
        self._raw.write(self._compressor.flush())


def write_tar(files: Mapping[str, Opener | Link], onto: IO[bytes] | io.RawIOBase) -> int:
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
