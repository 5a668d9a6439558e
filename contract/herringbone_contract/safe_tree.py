"""Open, read, list and remove files of a tree that a job's script may change, without following any link.

A script may replace any folder of its tree by a link, also while we work in the tree. The kernel therefore never gets
a path of several parts from us: it opens each part relative to the descriptor of the folder above, and refuses links.

    base          a folder of ours: its path is trusted
      output      opened relative to the descriptor of `base`, with O_NOFOLLOW
        data      opened relative to the descriptor of `output`, with O_NOFOLLOW
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import IO, NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: to open a FIFO without a writer would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Each level of a walk holds one descriptor, and processes have 1,024 by default.
MAX_DEPTH = 200


class Entry(NamedTuple):
    """One entry of a tree: its name below the folder that is listed, with slashes, and its state by `lstat`.

    `target` is what is written in a link, "" for all other kinds.
    """

    name: str
    state: os.stat_result
    target: str = ""

    @property
    def kind(self) -> str:
        """Return "file", "folder", "link", "socket", "FIFO" or "device".

        >>> Entry("a", os.lstat("/")).kind
        'folder'
        """
        return _KINDS.get(stat.S_IFMT(self.state.st_mode), "device")


_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "FIFO",
}


@contextlib.contextmanager
def folder(base: int | str | PurePath, inside: str = "") -> Iterator[int]:
    """Open the folder `inside` of `base`, a path or a descriptor, for the time of a `with` block.

    >>> with folder("/usr", "share/doc") as descriptor: os.listdir(descriptor)     # doctest: +SKIP

    Raises `OSError` when a part of `inside` does not exist, or is a link or a file; the error names that part.
    """
    descriptor = os.dup(base) if isinstance(base, int) else os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        passed = "" if isinstance(base, int) else f"{base}/"
        for name in PurePath(inside).parts:
            passed += name
            below = _open(name, _FOLDER, descriptor, passed)
            os.close(descriptor)
            descriptor = below
            passed += "/"
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(base: int | str | PurePath, name: str) -> IO[bytes]:
    """Open the regular file `name`, which may have slashes, below `base`; raise `OSError` for any other kind."""
    path = PurePath(name)
    with folder(base, str(path.parent)) as parent:
        descriptor = _open(path.name, _FILE, parent, name if isinstance(base, int) else f"{base}/{name}")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", name)
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor


def read_file(base: int | str | PurePath, name: str, *, limit: int) -> bytes:
    """Return the first `limit` bytes of a regular file below `base`; raise `OSError` for any other kind."""
    with open_file(base, name) as file:
        return file.read(limit)


def rewrite(base: str | PurePath, name: str, content: bytes) -> None:
    """Replace the file `name` below `base` by one with this content, whole at once. Raises `OSError`."""
    path = PurePath(name)
    new = f".{path.name}.new"
    with folder(base, str(path.parent)) as parent:
        remove(parent, new)
        file = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent)
        with os.fdopen(file, "wb") as file_object:
            file_object.write(content)
        os.rename(new, path.name, src_dir_fd=parent, dst_dir_fd=parent)


def copy(base: int | str | PurePath, name: str, target: Path) -> None:
    """Copy a file below `base` with its mode and its times, or a link as it is, to a path of ours."""
    path = PurePath(name)
    with folder(base, str(path.parent)) as parent:
        if stat.S_ISLNK(os.lstat(path.name, dir_fd=parent).st_mode):
            target.symlink_to(os.readlink(path.name, dir_fd=parent))
            return
        with open_file(parent, path.name) as source, target.open("wb") as copied:
            shutil.copyfileobj(source, copied, 1 << 20)
            state = os.fstat(source.fileno())
    target.chmod(stat.S_IMODE(state.st_mode))
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def exists(base: int | str | PurePath, name: str) -> bool:
    """Report whether there is a regular file `name` below `base`."""
    try:
        open_file(base, name).close()
    except OSError:
        return False
    return True


def walk(top: int) -> Iterator[Entry]:
    """Yield all entries below an open folder, in the order of their names; links are entries and are not followed.

    Raises `OSError` for a folder that cannot be listed, or one that lies more than `MAX_DEPTH` folders deep.
    """
    # Each level: an open folder, its name with a slash, and the names in it that are still to come.
    levels = [(os.dup(top), "", _names(top))]
    try:
        while levels:
            inside, above, names = levels[-1]
            if not names:
                os.close(levels.pop()[0])
                continue
            name = names.pop()
            try:
                state = os.lstat(name, dir_fd=inside)
                target = os.readlink(name, dir_fd=inside) if stat.S_ISLNK(state.st_mode) else ""
            except FileNotFoundError:
                # The script has removed it since the listing.
                continue
            entry = Entry(above + name, state, target)
            yield entry
            if entry.kind == "folder":
                if len(levels) == MAX_DEPTH:
                    raise OSError(errno.ELOOP, f"folders are nested more than {MAX_DEPTH} deep", entry.name)
                below = _open(name, _FOLDER, inside, entry.name)
                levels.append((below, f"{entry.name}/", _names(below)))
    finally:
        for descriptor, _, _ in levels:
            os.close(descriptor)


def has_only_files(top: int, depth: int = 0) -> bool:
    """Return whether an open folder holds nothing but files and folders; a tenth of the time that `walk` takes.

    Raises `OSError` for a folder that cannot be listed.
    """
    with os.scandir(top) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                if not entry.is_file(follow_symlinks=False):
                    return False
                continue
            if depth == MAX_DEPTH:
                return False
            try:
                below = _open(entry.name, _FOLDER, top, entry.name)
            except FileNotFoundError:
                # The script has removed it since the listing.
                continue
            try:
                if not has_only_files(below, depth + 1):
                    return False
            finally:
                os.close(below)
    return True


def is_empty(base: str | PurePath, inside: str) -> bool:
    """Report whether a folder is empty, or does not exist. Raises `OSError` when it is a link or a file."""
    try:
        with folder(base, inside) as descriptor:
            return not os.listdir(descriptor)  # noqa: PTH208 - a descriptor
    except FileNotFoundError:
        return True


def remove(parent: int, name: str) -> None:
    """Remove the entry `name` of an open folder, and all that is below it; links are removed, never their targets.

    Nothing happens when there is no such entry. Folders of ours that are not writable, or not even readable, are made
    so first. Raises `OSError` for what cannot be removed, such as the files of another user.
    """
    if not _unlink(name, parent):
        descriptor = _open_to_empty(name, parent, name)
        try:
            _empty(descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=parent)


def make_folder(parent: int, name: str) -> bool:
    """Make sure that the entry `name` of an open folder is a folder; return whether it replaced something else."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            return False
        remove(parent, name)
        os.mkdir(name, dir_fd=parent)
        return True
    return False


def _empty(top: int) -> None:
    """Remove everything below an open folder."""
    moved = 0
    # A second round removes the folders that the first one moved to the top.
    while names := _names(top):
        levels = [(os.dup(top), "", names)]
        try:
            while levels:
                inside, own_name, names = levels[-1]
                if not names:
                    os.close(levels.pop()[0])
                    if levels:
                        os.rmdir(own_name, dir_fd=levels[-1][0])
                elif not _unlink(name := names.pop(), inside):
                    if len(levels) < MAX_DEPTH:
                        below = _open_to_empty(name, inside, "/".join([*(level[1] for level in levels[1:]), name]))
                        levels.append((below, name, _names(below)))
                    else:
                        # A script can nest folders without limit, and each level of this walk holds a descriptor.
                        os.rename(name, f".removed-{os.getpid()}-{moved}", src_dir_fd=inside, dst_dir_fd=top)
                        moved += 1
        finally:
            for descriptor, _, _ in levels:
                os.close(descriptor)


def _open_to_empty(name: str, parent: int, shown: str) -> int:
    """Open a folder that is about to be removed, and let its owner write to it: scripts also make read-only folders."""
    try:
        descriptor = _open(name, _FOLDER, parent, shown)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        # A folder that may not be read. Linux changes a mode without following links only through /proc.
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # noqa: PTH101
        finally:
            os.close(handle)
        descriptor = _open(name, _FOLDER, parent, shown)
    # Not of a folder of another user, whose entries may be ours to remove all the same.
    with contextlib.suppress(PermissionError):
        if (mode := stat.S_IMODE(os.fstat(descriptor).st_mode)) & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(descriptor, mode | stat.S_IRWXU)
    return descriptor


def _unlink(name: str, inside: int) -> bool:
    """Remove an entry that is no folder, or an empty one; return False for other folders."""
    try:
        os.unlink(name, dir_fd=inside)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        # Linux reports EISDIR for a folder, POSIX and macOS report EPERM.
        if not stat.S_ISDIR(os.lstat(name, dir_fd=inside).st_mode):
            raise
        # An empty folder of another user, which may not be opened, such as the kernel's own in each overlay.
        try:
            os.rmdir(name, dir_fd=inside)
        except OSError:
            return False
    return True


def _names(inside: int) -> list[str]:
    """Return the names in a folder in reverse order: `pop` takes the last one first."""
    return sorted(os.listdir(inside), reverse=True)


def _open(name: str, flags: int, parent: int, shown: str) -> int:
    # The kernel would take ".." out of the tree, and "/" away from `parent`.
    if name == ".." or "/" in name:
        raise OSError(errno.EINVAL, "it leads out of its folder", shown)
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        # Linux reports ENOTDIR or ELOOP for a link, depending on the flags; FreeBSD reports EMLINK.
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK, errno.ENXIO):
            with contextlib.suppress(OSError):
                reason = f"it is a {Entry(name, os.lstat(name, dir_fd=parent)).kind}"
        # The name alone would not say where the entry is.
        raise OSError(error.errno, reason, shown) from None
