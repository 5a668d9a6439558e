"""Checkpoints that were fetched from machines: settle their links, and merge those of all hosts into one folder.

    fetch: links as they are --> settle_links --> merge_checkpoints --> send: links followed

The checkpoints are sent with links followed, so a link that leads out of its folder would send a file of this machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from herringbone.controller.links import listing_of, packed_target
from herringbone.jobs.checkpoints import newest_files
from herringbone_contract import safe_tree
from herringbone_contract.masking import printable


def settle_links(folder: Path, roots: Sequence[str], refuse: Callable[[str, str], None]) -> None:
    """Make links of a fetched folder relative, and remove those that leave it; `refuse` gets the name and the reason.

    `roots` are the absolute paths by which the script knew the folder. FIFOs and sockets are removed, too.
    """
    with safe_tree.folder(folder) as top:
        entries = list(safe_tree.walk(top))
        listing = listing_of(entries)
        for entry in entries:
            if entry.kind in ("file", "folder"):
                continue
            path = PurePosixPath(entry.name)
            with safe_tree.folder(top, str(path.parent)) as parent:
                safe_tree.remove(parent, path.name)
                try:
                    if entry.kind != "link":
                        raise ValueError(f"it is a {entry.kind}")
                    os.symlink(packed_target(entry.name, listing, roots), path.name, dir_fd=parent)
                except ValueError as error:
                    refuse(printable(entry.name), printable(str(error)))


def merge_checkpoints(folder: Path) -> Path | None:
    """Return a folder with the files of all hosts' folders in `folder`, of each name the newest; None without files."""
    merged = folder / ".all"
    # Of an earlier retry.
    shutil.rmtree(merged, ignore_errors=True)
    # A dot marks folders that were not fetched completely.
    hosts = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")] if folder.is_dir() else []
    # Links stay links: `settle_links` has kept only those that stay in the folder.
    newest = newest_files(hosts)
    for name, file in newest.items():
        target = merged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # A hard link: checkpoints may be large, and both names are on one disk.
        os.link(file, target, follow_symlinks=False)
    return merged if newest else None
