"""Measure and remove folders that a job's script may have filled: links are neither followed nor counted."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from herringbone_contract import safe_tree

_BLOCK_BYTES = 512
# Each of two processes that remove one folder finds it changed at most this often.
_MOST_TRIES = 1_000


def size_of(path: Path) -> int:
    """Return the bytes on the disk that a file or a folder takes; 0 without either.

    The targets of links do not count, and a file with several names counts once. Neither do files that vanish or cannot
    be read meanwhile: a job may still write, and containers may leave folders of another user.
    """
    blocks, seen = 0, set[tuple[int, int]]()
    # Half of a sum is better than none: the size is for a message only. A script can nest folders without limit.
    with suppress(OSError, RecursionError):
        # Blocks and not the length: a file with holes takes less space than its length.
        blocks = path.lstat().st_blocks
        # Relative to open folders, so that a script cannot lead this elsewhere by a link.
        for _, folders, files, descriptor in os.fwalk(path, follow_symlinks=False):
            for name in (*folders, *files):
                with suppress(OSError):
                    state = os.lstat(name, dir_fd=descriptor)
                    if state.st_nlink == 1 or (state.st_dev, state.st_ino) not in seen:
                        blocks += state.st_blocks
                        seen.add((state.st_dev, state.st_ino))
    return blocks * _BLOCK_BYTES


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; nothing happens when there is none.

    Raises `OSError` for what cannot be removed, such as the files of another user.
    """
    with suppress(FileNotFoundError), safe_tree.folder(path.parent) as parent:
        for _ in range(_MOST_TRIES):
            # Another process may remove the same folder at this moment.
            with suppress(FileNotFoundError):
                safe_tree.remove(parent, path.name)
                return


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when a file is replaced or written; None where there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns
