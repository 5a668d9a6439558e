"""Measure and remove folders that a job's script may have filled: links are neither followed nor counted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from herringbone_contract import safe_tree

_BLOCK_BYTES = 512
# Each of two processes that remove one folder finds it changed at most this often.
_MOST_TRIES = 1_000


def size_of(path: Path) -> int:
    """Return the bytes on the disk that a file or a folder takes; the targets of links are not counted."""
    blocks = 0
    # Half of a sum is better than none: the size is for a message only.
    with suppress(OSError):
        blocks = path.lstat().st_blocks
        with safe_tree.folder(path.parent, path.name) as descriptor:
            for entry in safe_tree.walk(descriptor):
                # Blocks and not the length: a file with holes takes less space than its length.
                blocks += entry.state.st_blocks
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
