"""One tar with the files that a local engine would mount, streamed to a remote engine in pieces.

this machine                                    container
  hosts/algo-1/ml/...        ------------------>  /opt/ml/...
  a channel's folder         ------------------>  /opt/ml/input/data/<name>/...
  a link into a sharded channel: the file itself
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from herringbone.backends.docker.tree import WHOLE_CHANNELS, Mount

Write = Callable[[bytes], object]


class _Sink:
    """A file with the one method that `tarfile` needs to write a stream."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)


def write_tar(mounts: Sequence[Mount], write: Write, *, user: int, group: int) -> None:
    """Write a tar with the files of all mounts below their targets, owned by `user` and `group`.

    The tar contains each target, but not the folders above it.
    """
    with tarfile.open(fileobj=cast("IO[bytes]", _Sink(write)), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, name in _files(mounts):
            info = archive.gettarinfo(path, name)
            if not (info.isreg() or info.isdir() or info.issym()):
                # A socket or a pipe has no content to send.
                continue
            info.uid, info.gid, info.uname, info.gname = user, group, "", ""
            if info.isreg():
                with open(path, "rb") as content:  # noqa: PTH123
                    archive.addfile(info, content)
            else:
                archive.addfile(info)


def is_copied(mount: Mount) -> bool:
    """Report whether a mount is sent as a whole; a sharded channel is sent file by file, in place of its links."""
    return WHOLE_CHANNELS not in PurePosixPath(mount.target).parents


def _files(mounts: Sequence[Mount]) -> Iterator[tuple[str, str]]:
    """Yield each path of this machine with its name in the tar."""
    parts = {mount.target: mount.source for mount in mounts if not is_copied(mount)}
    for mount in filter(is_copied, mounts):
        yield mount.source, mount.target.lstrip("/")
        for inside, folders, names in os.walk(mount.source):
            below = PurePosixPath(mount.target.lstrip("/")) / PurePosixPath(inside).relative_to(mount.source)
            for name in sorted([*folders, *names]):
                yield _real(f"{inside}/{name}", parts), str(below / name)


def _real(path: str, parts: dict[str, str]) -> str:
    """Return the file behind a link into a channel that is not mounted, and any other path unchanged."""
    if not stat.S_ISLNK(os.lstat(path).st_mode):
        return path
    target = PurePosixPath(os.readlink(path))  # noqa: PTH115
    for whole, source in parts.items():
        if PurePosixPath(whole) in target.parents:
            return str(Path(source) / target.relative_to(whole))
    return path
