"""What jobs left in a machine's work folder, and which of it nobody needs any more.

    jobs/NAME                   a job that is over, by its end
    code/DIGEST.tar.gz          code and data that no remaining job used, by when it came
    data/DIGEST
    environments/DIGEST         of another Herringbone than the one that asks, and of no remaining job
    cache/environments/DIGEST   made for a requirements.txt
    cache/images/ID             the same, for containers of an image

A machine that is in use gives only jobs that are over: what a job needs from its start on, nobody takes away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from herringbone.jobs.home import Home
from herringbone.jobs.index import JobIndex, JobRecord

USES = "uses.json"
_READY = "herringbone-ready"
_BLOCK_BYTES = 512


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """What a host of a job takes from its machine's work folder: the digests of its code and data, its environment."""

    code: str
    data: tuple[str, ...]
    environment: str


class Leftover(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One thing that may go: `size` in bytes on the disk, `age` in seconds; with `trouble`, why it is still there."""

    kind: str
    name: str
    size: int
    age: float
    trouble: str = ""


def note_uses(folder: Path, uses: Uses) -> None:
    """Write down, in a job's folder, what it takes from the work folder."""
    (folder / USES).write_bytes(msgspec.json.encode(uses))


def clean(home: Home, *, older: float, now: float, idle: bool, environment: Path, dry: bool) -> list[Leftover]:
    """Remove what is older than `older` seconds at the time `now`, and return it; with `dry`, only return it.

    `idle` says that no job has the machine and none can come to have it meanwhile. `environment` is the asking
    Herringbone's own.
    """
    index = JobIndex(home.index)
    records = {record.name: record for record in index.all()}
    found, kept = [], []
    for name in sorted({*records, *_names(home.path / "jobs")}):
        folder = home.job(name).path
        age = now - _end(folder, records.get(name))
        if age < older:
            kept.append(folder)
            continue
        gone = _take(Leftover(kind="job", name=name, size=0, age=age), folder, dry=dry)
        if name in records and not dry and not gone.trouble:
            index.remove(name)
        found.append(gone)
    if idle:
        found += _unused(home, kept, older=older, now=now, environment=environment, dry=dry)
    return found


def _unused(
    home: Home, kept: list[Path], *, older: float, now: float, environment: Path, dry: bool
) -> Iterator[Leftover]:
    uses = [_uses_of(folder) for folder in kept]
    needed = {
        "code": {f"{each.code}.tar.gz" for each in uses},
        "data": {digest for each in uses for digest in each.data},
        "environments": {environment.name, *(each.environment for each in uses)},
        "cache/environments": set(),
        "cache/images": set(),
    }
    for place, names in needed.items():
        for name in sorted(_names(home.path / place) - names):
            path = home.path / place / name
            # What is below keeps a folder's own time true only until something in it is touched.
            ready = path / _READY
            with suppress(OSError):
                age = now - (ready if ready.exists() else path).lstat().st_mtime
                if age >= older and path.suffix != ".lock":
                    yield _take(Leftover(kind=place, name=name, size=0, age=age), path, dry=dry)


def _end(folder: Path, record: JobRecord | None) -> float:
    """Return when a job ended, which of one that runs is never; of a folder that no row knows, when it was made."""
    if record is not None:
        return record.ended or record.created if record.done else float("inf")
    with suppress(OSError):
        return folder.lstat().st_mtime
    return float("inf")


def _uses_of(folder: Path) -> Uses:
    try:
        return msgspec.json.decode((folder / USES).read_bytes(), type=Uses)
    except (OSError, msgspec.DecodeError):
        return Uses(code="", data=(), environment="")


def _take(what: Leftover, path: Path, *, dry: bool) -> Leftover:
    what.size = size_of(path)
    if dry:
        return what
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        what.trouble = f"{error.filename or path}: {error.strerror}"
    return what


def size_of(path: Path) -> int:
    """Return how many bytes of the disk a file or a folder takes; what links lead to is not counted."""
    total = 0
    with suppress(OSError):
        total = path.lstat().st_blocks * _BLOCK_BYTES
    for inside, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(OSError):
                total += os.lstat(f"{inside}/{name}").st_blocks * _BLOCK_BYTES
    return total


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names are what is asked for
    except OSError:
        return set()
