"""Checkpoints that were fetched from machines: merge those of all hosts into one folder.

    fetch: links as they are --> settle_links --> merge_checkpoints --> send: links followed

The checkpoints are sent with links followed, so a link that leads out of its folder would send a file of this machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from herringbone.records.checkpoints import newest_files


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
