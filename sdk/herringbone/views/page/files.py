"""The files of a job that a page lists and hands out: those below a few folders of the job's own, and no links.

The job's script may change these folders at any time, so `safe_tree` opens each part of a path without following links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from herringbone_contract import safe_tree
from herringbone_contract.masking import printable

# Not `input`: hyperparameters there are not masked, and data belongs to the user.
_HOST_FOLDERS = ("model", "output", "checkpoints", "code")
_JOB_FOLDERS = ("logs", "output")
_MAX_FILES = 500
_MAX_ENTRIES = 20_000


def listed_files(folder: Path) -> list[dict[str, Any]]:
    """Return the files of a job: {path, shown, size, t}; `path` is below the job's folder.

    >>> listed_files(Path("/nowhere"))
    []

    `shown` is the path with escapes for characters that nobody sees. A name that is no UTF-8 cannot be part of an
    address: its `path` is "". At most 500 below each folder, whatever a script leaves there, and a line about the rest.
    """
    files: list[dict[str, Any]] = []
    for inside in _folders(folder):
        try:
            with safe_tree.folder(folder, inside) as top:
                files += _below(top, inside)
        except OSError:
            # It does not exist, or is a link of the script's.
            continue
    return files


def open_listed(folder: Path, path: str) -> tuple[IO[bytes], int]:
    """Open a file for a download, and return it with its size; `path` is one that `listed_files` returned.

    Raises `OSError` for any other path: one that leaves these folders, a link, or something that is no file.
    """
    parts = PurePosixPath(path).parts
    allowed = any(PurePosixPath(path).is_relative_to(inside) for inside in _folders(folder))
    if not allowed or ".." in parts or path.startswith("/") or "\0" in path:
        raise FileNotFoundError(2, "the job has no such file", path)
    file = safe_tree.open_file(folder, path)
    return file, os.fstat(file.fileno()).st_size


def _folders(folder: Path) -> list[str]:
    try:
        hosts = sorted(entry.name for entry in os.scandir(folder / "hosts"))
    except OSError:
        hosts = []
    hosts.sort(key=len)
    return [*_JOB_FOLDERS, *(f"hosts/{host}/ml/{name}" for host in hosts[:1_000] for name in _HOST_FOLDERS)]


def _below(top: int, inside: str) -> Iterator[dict[str, Any]]:
    count = 0
    for seen, entry in enumerate(safe_tree.walk(top)):
        if count >= _MAX_FILES or seen >= _MAX_ENTRIES:
            yield rest(f"{inside}: more files are there")
            return
        if entry.kind == "file":
            count += 1
            path = f"{inside}/{entry.name}"
            address = path if path.encode("utf-8", "replace").decode() == path else ""
            time = round(entry.state.st_mtime)
            yield {"path": address, "shown": printable(path), "size": entry.state.st_size, "t": time}


def rest(text: str) -> dict[str, Any]:
    """Return the line of a list that says what the list leaves out."""
    return {"path": "", "shown": text, "size": None, "t": None}
