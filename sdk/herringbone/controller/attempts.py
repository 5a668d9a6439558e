"""Files of an attempt that is over: the ends of its logs, and its newest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from herringbone.records.logs import STAMP_CHARS
from herringbone_contract.checkpoint.roll_back import is_beside
from herringbone_contract.safe_tree import Entry, walk
from herringbone_contract.safe_tree import folder as safe_folder

# The policies search the end of a log: the line that explains a failed attempt is among its last.
LOG_BYTES = 16 << 20
# Suffixes of files that are renamed when they are complete, so they are no checkpoints yet.
_UNFINISHED = (".tmp", ".new", ".part", ".partial", ".unfinished")


class Saved(NamedTuple):
    """A file of checkpoints: its name within their folder, and when it was last written, in ns since 1970."""

    name: str
    modified: int


def newest_file(*folders: Path) -> Saved | None:
    """Return the most recently written file of checkpoints; None when there is none.

    A folder that is a link counts as empty.
    """
    files = (Saved(file.name, file.state.st_mtime_ns) for folder in folders for file in _files(folder))
    return max(files, key=lambda file: (file.modified, file.name), default=None)


def _files(folder: Path) -> Iterator[Entry]:
    try:
        with safe_folder(folder.parent, folder.name) as descriptor:
            yield from (entry for entry in walk(descriptor) if entry.kind == "file" and _is_saved(entry.name))
    except OSError:
        # The name is for a message only, so a folder that is missing or cannot be read has none.
        return


def _is_saved(name: str) -> bool:
    # A dot marks what is still written: a file, or a folder with all its files.
    return not (is_beside(name) or name.endswith(_UNFINISHED) or name.startswith(".") or "/." in name)


def read_log(logs: Path, host: str, begin: int) -> str:
    """Return the last lines of a host's ranks, from the byte `begin` of its log at the earliest; "" without a log.

    Lines of supervisors and controllers are left out: they report what happened on other hosts.
    """
    supervisor = f"[{host}] ".encode()
    try:
        with (logs / f"{host}.log").open("rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = [line[STAMP_CHARS:] for line in file.read().splitlines()]
    except FileNotFoundError:
        return ""
    return "\n".join(line.decode("utf-8", "replace") for line in lines if not line.startswith(supervisor))
