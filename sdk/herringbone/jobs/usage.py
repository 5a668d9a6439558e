"""The disk space of a job's folder."""

from __future__ import annotations

import os
from pathlib import Path


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 without a folder.

    >>> folder_bytes(Path("/jobs/digits-1"))                         # doctest: +SKIP
    12345678

    A file with several names (hard links) counts once, and links count as links. Files that vanish or cannot be read
    meanwhile do not count: a job may still write, and containers may leave folders of another user.
    """
    total, seen = 0, set[tuple[int, int]]()
    pending = [os.fspath(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    state = entry.stat(follow_symlinks=False)
                    if state.st_nlink > 1 and (state.st_dev, state.st_ino) in seen:
                        continue
                    seen.add((state.st_dev, state.st_ino))
                    total += state.st_size
        except OSError:
            continue
    return total
