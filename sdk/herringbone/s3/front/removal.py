"""Removing a bucket whole, and what interrupted calls have left."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from herringbone_contract import safe_tree

# The front's own folder in a bucket, that of objects which have no path of their own, and the begin of the name of a
# bucket that is being deleted.
OWN, APART, DELETED = ".herringbone", ".herringbone/keys", ".herringbone-deleted-"


def has_files(bucket: Path) -> bool:
    """Report whether a bucket has files beside the front's own; links are none.

    Files of any name count, also those that no key can mean: whoever made them may need them.
    """
    with safe_tree.folder(bucket) as top:
        try:
            return any(
                entry.kind not in ("folder", "link")
                and (entry.name.partition("/")[0] != OWN or entry.name.startswith(f"{APART}/"))
                for entry in safe_tree.walk(top)
            )
        except OSError as error:
            # Folders that are nested so deep hold something.
            if error.errno != errno.ELOOP:
                raise
            return True


def removed(bucket: Path) -> bool:
    """Remove a bucket without files; return False if it has some."""
    if has_files(bucket):
        return False
    with safe_tree.folder(bucket.parent) as parent:
        safe_tree.remove(parent, bucket.name)
    return True


def held_alone(folder: Path) -> int | None:
    """Return a descriptor that keeps a folder for this process; None where another one has it, or none can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Another service, or a file system of a server without locks of folders.
        os.close(descriptor)
        return None
    return descriptor


def remove_abandoned(folder: Path, *, alone: bool = False, older_than: float = 7 * 24 * 3600.0) -> None:
    """Remove content and parts that nobody has touched for a week: their clients are gone.

    A bucket whose deletion was interrupted goes, too. One into which somebody has put a file meanwhile comes back.
    Where the process has the folder `alone`, so does all that an earlier one was writing at its end. An upload stays:
    its client goes on.
    """
    for path in folder.glob(f"{DELETED}*"):
        with suppress(OSError):
            if not removed(path):
                path.rename(folder / path.name.removeprefix(DELETED))
    limit = time.time() - older_than
    for kind in ("new/*", "uploads/*", "uploads/*/.*.partial", "facts/*/.*.partial"):
        for path in folder.glob(f"*/{OWN}/{kind}"):
            with suppress(OSError):
                if path.stat().st_mtime < limit or (alone and kind != "uploads/*"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
