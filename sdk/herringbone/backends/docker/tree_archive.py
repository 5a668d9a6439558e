"""One tar with the files that a local engine would mount, streamed to a remote engine in pieces.

this machine                                    container
  hosts/algo-1/ml/...        ------------------>  /opt/ml/...
  a channel's folder         ------------------>  /opt/ml/input/data/<name>/...
  a link into a sharded channel: the file itself

Scripts of earlier jobs, and of jobs that run now, may change a folder of checkpoints. All files below a mounted folder
are therefore opened through `safe_tree`, which follows no link.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from herringbone.backends.docker.tree import WHOLE_CHANNELS, Mount
from herringbone_contract import safe_tree

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

    The tar contains each target, but not the folders above it. Sockets, FIFOs and devices have no content to send.
    Raises `OSError` for a file that cannot be read.
    """
    parts = {mount.target: mount.source for mount in mounts if not is_copied(mount)}
    with tarfile.open(fileobj=cast("IO[bytes]", _Sink(write)), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        files = _Files(archive, parts, user, group)
        for mount in filter(is_copied, mounts):
            name = mount.target.lstrip("/")
            # The user or we have chosen the source itself, so its own path is followed.
            if Path(mount.source).is_dir():
                files.add_folder(mount.source, name)
            else:
                with open(mount.source, "rb") as content:  # noqa: PTH123
                    files.add_file(content, name)


def is_copied(mount: Mount) -> bool:
    """Report whether a mount is sent as a whole; a sharded channel is sent file by file, in place of its links."""
    return WHOLE_CHANNELS not in PurePosixPath(mount.target).parents


class _Files:
    """Adds files to an archive; `parts` maps the targets of channels that are not mounted to their folders here."""

    def __init__(self, archive: tarfile.TarFile, parts: dict[str, str], user: int, group: int) -> None:
        self._archive, self._parts, self._user, self._group = archive, parts, user, group

    def add_folder(self, source: str, name: str) -> None:
        with safe_tree.folder(source) as top:
            self._archive.addfile(self._member(name, os.fstat(top)))
            for entry in safe_tree.walk(top):
                self._add_entry(top, entry, f"{name}/{entry.name}")

    def add_file(self, content: IO[bytes], name: str) -> None:
        # The size is that of the open file: another file may have taken its path.
        self._archive.addfile(self._member(name, os.fstat(content.fileno())), content)

    def _add_entry(self, top: int, entry: safe_tree.Entry, name: str) -> None:
        if entry.kind == "file":
            try:
                content = safe_tree.open_file(top, entry.name)
            except FileNotFoundError:
                # Another job has removed it since the listing.
                return
            with content:
                self.add_file(content, name)
        elif entry.kind == "link" and (file := self._in_channel(entry.target)) is not None:
            with file.open("rb") as content:
                self.add_file(content, name)
        elif entry.kind in ("folder", "link"):
            self._archive.addfile(self._member(name, entry.state, entry.target))

    def _in_channel(self, target: str) -> Path | None:
        """Return the file behind a link into a channel that is not mounted; None for any other link."""
        path = PurePosixPath(target)
        # A script that wrote the link could leave the channel with "..".
        if ".." in path.parts:
            return None
        for whole, source in self._parts.items():
            if PurePosixPath(whole) in path.parents:
                file = Path(source) / path.relative_to(whole)
                return file if file.is_file() else None
        return None

    def _member(self, name: str, state: os.stat_result, target: str = "") -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime, info.linkname = stat.S_IMODE(state.st_mode), int(state.st_mtime), target
        info.uid, info.gid = self._user, self._group
        if stat.S_ISREG(state.st_mode):
            info.size = state.st_size
        else:
            info.type = tarfile.DIRTYPE if stat.S_ISDIR(state.st_mode) else tarfile.SYMTYPE
        return info
