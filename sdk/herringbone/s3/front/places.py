"""The places of objects in a bucket: make the place of a new one, open one, and list all.

Folders are opened part by part, without following links: a job that may write into the bucket can replace a folder by a
link at any moment. Callers that change places hold the store's lock.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from herringbone.s3.front.keys import is_own, key_apart, key_of, path_apart, path_of
from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.removal import APART, OWN
from herringbone_contract import safe_tree

_LAST = "\U0010ffff"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def place(top: Path, key: str) -> Iterator[tuple[int, str, bool]]:
    """Open the folder where a key's file goes, made if it is not there; yield it, the file's name, and True if apart.

    Raises `S3Error` where a link is on the way.
    """
    path = path_of(key)
    if path is not None:
        folder, _, name = path.rpartition("/")
        with _made(top, folder) as parent:
            if not stat.S_ISDIR(_mode(name, parent)):
                yield parent, name, False
                return
    folder, _, name = path_apart(key).rpartition("/")
    with _made(top, folder) as parent:
        yield parent, name, True


@contextmanager
def _made(top: Path, path: str) -> Iterator[int]:
    """Open a folder, made if it is not there. An object that has the name of a folder on the way lies apart then."""
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        passed = ""
        for part in filter(None, path.split("/")):
            passed += part
            mode = _mode(part, folder)
            if stat.S_ISREG(mode):
                above, _, name = path_apart(key_of(passed)).rpartition("/")
                with _made(top, above) as apart:
                    os.rename(part, name, src_dir_fd=folder, dst_dir_fd=apart)
            elif mode and not stat.S_ISDIR(mode):
                raise S3Error("InvalidRequest", f"{part} is a link in the folder of the bucket.", 409)
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
            passed += "/"
        yield folder
    finally:
        os.close(folder)


def _mode(name: str, folder: int) -> int:
    """Return the mode of an entry of an open folder; 0 where there is none."""
    try:
        return os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return 0


def remove_empty(top: Path, path: str) -> None:
    """Remove the folders of a path that are empty, from the last one up."""
    while path:
        above, _, name = path.rpartition("/")
        try:
            with safe_tree.folder(top, above) as parent:
                os.rmdir(name, dir_fd=parent)
        except OSError:
            return
        path = above


def open_object(top: Path, path: str) -> IO[bytes] | None:
    """Open a file without following a link; None where there is no regular file."""
    try:
        return safe_tree.open_file(top, path)
    except OSError:
        return None


def keys_apart(top: Path, prefix: str = "") -> list[str]:
    """Return the keys with a prefix whose objects lie apart: no file has the path of such a key."""
    try:
        with safe_tree.folder(top, APART) as folder:
            names = [entry.name for entry in safe_tree.walk(folder) if entry.kind == "file"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [key for name in names if (key := key_apart(name)) is not None and key.startswith(prefix)]


def keys_below(top: Path, prefix: str = "", after: str = "", *, by_folder: bool = False) -> Iterator[str]:
    """Yield the keys of the files in a bucket, as `Store.keys` does."""
    return _walk(top, "", prefix, after, by_folder)


def _listed(top: Path, inside: str) -> list[tuple[str, bool]]:
    """Return the names of folders and files in a folder of a bucket, each with True for a folder."""
    try:
        with safe_tree.folder(top, inside) as folder, os.scandir(folder) as listing:
            return [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in listing
                if not is_own(entry.name)
                and (inside or entry.name != OWN)
                and (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
            ]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        # Removed or replaced since its folder was listed.
        return []


def _walk(top: Path, inside: str, prefix: str, after: str, by_folder: bool) -> Iterator[str]:
    """Yield the keys below the folder `inside` of a bucket, a path that is "" or ends with a slash."""
    below = {key_of(inside + name + "/" * is_folder): (name, is_folder) for name, is_folder in _listed(top, inside)}
    for key in sorted(below, key=str.encode):
        name, is_folder = below[key]
        if not is_folder:
            if key > after and key.startswith(prefix):
                yield key
        elif not (key.startswith(prefix) or prefix.startswith(key)) or f"{key}{_LAST}" <= after:
            continue
        elif by_folder and key.startswith(prefix) and key != prefix:
            # Behind a key in the folder, the folder is an entry only for the rest of its keys.
            within = after if after.startswith(key) and after != key else ""
            if (key > after or within) and next(_walk(top, f"{inside}{name}/", key, within, False), None) is not None:
                yield key
        else:
            yield from _walk(top, f"{inside}{name}/", prefix, after, by_folder)
