"""Removing a bucket whole, and what interrupted calls have left."""

from __future__ import annotations

import errno
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


def remove_abandoned(folder: Path, *, older_than: float = 7 * 24 * 3600.0) -> None:
    """Remove content and parts that nobody has touched for a week: their clients are gone.

    A bucket whose deletion was interrupted goes, too. One into which somebody has put a file meanwhile comes back.
    """
    for path in folder.glob(f"{DELETED}*"):
        with suppress(OSError):
            if not removed(path):
                path.rename(folder / path.name.removeprefix(DELETED))
    limit = time.time() - older_than
    for kind in ("new", "uploads"):
        for path in folder.glob(f"*/{OWN}/{kind}/*"):
            with suppress(OSError):
                if path.stat().st_mtime < limit:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
