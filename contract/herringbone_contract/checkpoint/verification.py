"""Read a folder of checkpoints without unpickling anything: list what is there, and name what is wrong with it.

for checkpoint in listing(Path(os.environ["SM_CHECKPOINT_DIR"])):
    print(checkpoint.tag, [problem.text for problem in verify(checkpoint.path)])
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from herringbone_contract.checkpoint.manifest import (
    MANIFEST,
    NEWEST,
    REPLACED,
    SUFFIX,
    UNFINISHED,
    File,
    Manifest,
    checked_tag,
    parse,
)
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import open_regular

_READ_BYTES = 1 << 22
# A manifest has about 150 bytes for each tensor and rank.
_MAX_MANIFEST_BYTES = 1 << 31
_MAX_HEADER_BYTES = 1 << 28
_MAX_TAG_BYTES = 1 << 12


class Problem(NamedTuple):
    """A file of a checkpoint that cannot be used. `kind` is "missing", "torn", "foreign" or "damaged"."""

    file: str
    kind: str
    text: str


class Listed(NamedTuple):
    """An entry of a folder of checkpoints; `manifest` is None when there is none, and `problem` says why."""

    tag: str
    path: Path
    newest: bool
    manifest: Manifest | None
    problem: str | None


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint in this folder. Raises `ParallelError` when none can be read."""
    file = path / MANIFEST
    try:
        with open_regular(file) as stream:
            # Not `read(limit)`, which would ask for memory of that size first.
            if (size := os.fstat(stream.fileno()).st_size) > _MAX_MANIFEST_BYTES:
                raise ParallelError(f"{file} has {size} bytes, more than a manifest can have; restore the checkpoint")
            text = stream.read() or b""
    except FileNotFoundError as error:
        raise ParallelError(
            f"{path} has no {MANIFEST}, so it is no complete checkpoint of this form"
            if path.is_dir()
            else f"{path} does not exist: there is no such checkpoint"
        ) from error
    except OSError as error:
        raise ParallelError(f"{file} cannot be read: {error.strerror}") from error
    return parse(text, str(file))


def newest_tag(folder: Path) -> str | None:
    """Return the tag that the folder's file `newest` names, None without that file."""
    try:
        with open_regular(folder / NEWEST) as stream:
            return stream.read(_MAX_TAG_BYTES).decode().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def checkpoint_path(folder: Path, tag: str) -> Path:
    """Return the folder of this tag's checkpoint; during a replacement that of the earlier one.

    A save under a tag that exists renames the earlier checkpoint to a hidden name, and then its own to the tag. A job
    that is killed between the two renames leaves the hidden one.
    """
    path = folder / tag
    if not path.exists():
        replaced = [entry for entry in _hidden(folder, tag, REPLACED) if (entry / MANIFEST).exists()]
        if replaced:
            return max(replaced, key=lambda entry: entry.stat().st_mtime_ns)
    return path


def hidden(folder: Path) -> list[Path]:
    """Return the folders of saves that are unfinished or replaced."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in names if name.startswith(".") and name.endswith((UNFINISHED, REPLACED))]


def hidden_tag(path: Path) -> str:
    """Return the tag of a folder that `hidden` has returned."""
    # The save's name has no dot, so a tag `a` does not find the folders of `a.b`.
    return path.name[1:].rpartition(".")[0].rpartition(".")[0]


def has_any(folder: Path) -> bool:
    """Say whether a folder has a checkpoint, whole or damaged."""
    if newest_tag(folder) is not None:
        return True
    return folder.is_dir() and any(entry.manifest is not None for entry in listing(folder))


def newest_complete(folder: Path, passed: Mapping[str, str] = MappingProxyType({})) -> tuple[Listed, str | None]:
    """Return the newest complete checkpoint, and the reason when it is not the one that `newest` names.

    `passed` are the tags of those that are damaged, each with the reason. Raises `ParallelError` when there is none.
    """
    newest = newest_tag(folder)
    try:
        if newest is None:
            raise ParallelError(f"{folder} has no file `{NEWEST}`")
        if passed:
            raise ParallelError("; ".join(passed.values()))
        # The file may come from elsewhere; it must not lead out of the folder.
        path = checkpoint_path(folder, checked_tag(newest))
        manifest = read_manifest(path)
        problem = next((problem.text for problem in missing(path, manifest)), None)
        if problem is None:
            return Listed(newest, path, True, manifest, None), None
    except ParallelError as error:
        problem = str(error)
    complete = [
        entry
        for entry in listing(folder)
        if entry.manifest is not None and entry.problem is None and entry.tag not in passed
    ]
    if not complete:
        raise ParallelError(f"{problem}; {folder} has no complete checkpoint")
    return complete[-1], problem


def listing(folder: Path) -> list[Listed]:
    """Return the saves of a folder that were not finished, and then its checkpoints, the newest last."""
    newest = newest_tag(folder)
    listed = [_listed(path, path.name, newest) for path in _folders(folder)]
    known = {entry.tag for entry in listed}
    for path in hidden(folder):
        tag = hidden_tag(path)
        if path.name.endswith(UNFINISHED):
            listed.append(Listed(tag, path, False, None, "unfinished: its save runs, or was killed"))
        elif tag not in known:
            listed.append(_listed(path, tag, newest))
    # A time that has not come says nothing; a day for clocks that differ.
    latest = time.time() + 86400
    return sorted(
        listed, key=lambda entry: entry.manifest.time * (entry.manifest.time < latest) if entry.manifest else 0
    )


def missing(path: Path, manifest: Manifest) -> list[Problem]:
    """Return the files that are missing, have another size, are of another save, or have a damaged header.

    Reads headers only.
    """
    problems = (_missing(path, name, file, manifest.save) for name, file in manifest.files.items())
    return [problem for problem in problems if problem is not None]


def verify(path: Path, manifest: Manifest | None = None) -> list[Problem]:
    """Read a checkpoint completely and return all that is wrong with it; nothing when it is whole.

    Raises `ParallelError` when it has no manifest that can be read.
    """
    manifest = read_manifest(path) if manifest is None else manifest
    problems = missing(path, manifest)
    wrong = {problem.file for problem in problems}
    for name, file in manifest.files.items():
        if name not in wrong:
            problems += _damaged(path / name, file, manifest)
    for entry in sorted(path.glob(f"*{SUFFIX}")):
        if entry.name not in manifest.files:
            problems.append(Problem(entry.name, "foreign", f"{entry} is foreign: the manifest has no such file"))
    return problems


def _missing(path: Path, name: str, file: File, save: str) -> Problem | None:
    whose = f"{path / name} (rank {file.rank} on {file.host})"
    try:
        with open_regular(path / name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != file.bytes:
                return Problem(name, "torn", f"{whose} is torn: it has {size} of {file.bytes} bytes")
            # The header names the save, so its checksum tells at a fraction of the cost whether a parsed one would.
            if not name.endswith(SUFFIX) or _crc32(stream, 0, file.head_bytes) == file.head_crc32:
                return None
    except FileNotFoundError:
        return Problem(name, "missing", f"{whose} is missing; bring the files of all hosts into one folder")
    except OSError as error:
        return Problem(name, "damaged", f"{whose} cannot be read: {error.strerror}")
    found = _save_of(path / name)
    if found != save:
        text = f"{whose} is foreign: it is of the save {found}, and the checkpoint of {save}"
        return Problem(name, "foreign", text)
    return Problem(name, "damaged", f"{whose} is damaged: the checksum of its header differs")


def _damaged(path: Path, file: File, manifest: Manifest) -> Iterator[Problem]:
    chunks = [
        (chunk, name, tensor.bytes_of(chunk))
        for name, tensor in manifest.tensors.items()
        for chunk in tensor.chunks
        if chunk.file == path.name
    ]
    try:
        with open_regular(path) as stream:
            whole = path.name.endswith(SUFFIX) or _crc32(stream, 0, file.head_bytes) == file.head_crc32
            differing = [] if whole else ["its content"]
            differing += [name for chunk, name, count in chunks if _crc32(stream, chunk.start, count) != chunk.crc32]
    except OSError as error:
        yield Problem(path.name, "damaged", f"{path} cannot be read: {error.strerror}")
        return
    if differing:
        which = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
        yield Problem(path.name, "damaged", f"{path} is damaged: the checksum differs of {which}")


def _crc32(stream: FileIO, start: int, count: int) -> int:
    stream.seek(start)
    checksum, left = 0, count
    while left and (data := stream.read(min(left, _READ_BYTES))):
        checksum, left = zlib.crc32(data, checksum), left - len(data)
    return checksum


def _save_of(path: Path) -> str | None:
    """Return the save that a file's header names, None when it names none."""
    try:
        with open_regular(path) as stream:
            count = int.from_bytes(stream.read(8), "little")
            if count > _MAX_HEADER_BYTES:
                return None
            header = json.loads(stream.read(count))
        save = header["__metadata__"]["save"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return save if isinstance(save, str) else None


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise ParallelError(f"{folder} cannot be read: {error.strerror}") from error
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _hidden(folder: Path, tag: str, suffix: str) -> list[Path]:
    return [path for path in hidden(folder) if path.name.endswith(suffix) and hidden_tag(path) == tag]


def _listed(path: Path, tag: str, newest: str | None) -> Listed:
    try:
        manifest = read_manifest(path)
    except ParallelError as error:
        return Listed(tag, path, tag == newest, None, str(error))
    problems = missing(path, manifest)
    return Listed(tag, path, tag == newest, manifest, problems[0].text if problems else None)
