"""Give a checkpoint that is written completely its name, and make it the newest one.

    <folder>/.<tag>.<save>.unfinished  ->  <folder>/<tag>  ->  the file `newest`

A process that is killed in between leaves hidden folders, which the next save removes.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from herringbone_contract.checkpoint.manifest import MANIFEST, NEWEST, REPLACED, UNFINISHED, Manifest, to_json
from herringbone_contract.checkpoint.verification import hidden, hidden_tag
from herringbone_contract.files import sync, write_whole


def unfinished(folder: Path, tag: str, save: str) -> Path:
    """Return the folder in which a save writes its files."""
    return folder / f".{tag}.{save}{UNFINISHED}"


def publish(path: Path, folder: Path, manifest: Manifest) -> None:
    """Write the manifest into the unfinished folder, and rename that to its tag, which becomes the newest."""
    # This syncs the names of all files in the folder, too.
    write_whole(path / MANIFEST, to_json(manifest), mode=0o666, synced=True)
    final = folder / manifest.tag
    if final.is_dir():
        # A folder cannot take the place of another in one step: until the second rename, readers find this one.
        final.rename(path.with_name(path.name.removesuffix(UNFINISHED) + REPLACED))
    path.rename(final)
    sync(folder)
    note_newest(folder, manifest.tag)


def note_newest(folder: Path, tag: str) -> None:
    """Make this checkpoint the newest one."""
    # Groups of ranks may write it at the same time.
    write_whole(folder / NEWEST, f"{tag}\n".encode(), mode=0o666, synced=True)


def clean(folder: Path, tag: str | None = None) -> None:
    """Remove the hidden folders of saves that were killed: all, or those of a tag."""
    for left in hidden(folder):
        of_tag = hidden_tag(left)
        if tag not in (None, of_tag):
            # Other ranks may be saving there.
            continue
        if left.name.endswith(REPLACED) and not (folder / of_tag).exists():
            # The kill came between the two renames: this is the only checkpoint of its tag.
            with contextlib.suppress(OSError):
                left.rename(folder / of_tag)
        else:
            shutil.rmtree(left, ignore_errors=True)
