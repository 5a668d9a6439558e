"""Find and remove stale files: what jobs left in a machine's work folder and no remaining job needs.

    jobs/NAME                   a job that is over; its age counts from its end
    code/DIGEST.tar.gz          code and data that no remaining job used; their age counts from their arrival
    data/DIGEST
    environments/DIGEST         made for another Herringbone than the asking one, and used by no remaining job
    cache/environments/DIGEST   made for a requirements.txt
    cache/images/ID             the same, for containers of an image

On a machine that a job has, only folders of other jobs are removed: the job may need the rest at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from herringbone.backends.ssh.agent.bootstrap import READY
from herringbone.backends.ssh.agent.keeping import Keepers
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.disk import remove, size_of
from herringbone_contract.files import write_whole

USES = "uses.json"


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the work folder that a job's host uses: digests of its code and data, and its environment."""

    code: str
    data: tuple[str, ...]
    environment: str


class StaleFiles(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One file or folder to remove: `size` in bytes on the disk, `age` in seconds.

    `trouble` is the reason why a removal failed.
    """

    kind: str
    name: str
    size: int
    age: float
    trouble: str = ""


def note_uses(folder: Path, uses: Uses) -> None:
    """Record, in a job's folder, which parts of the work folder the job uses."""
    write_whole(folder / USES, msgspec.json.encode(uses))


def clean(home: Home, *, older: float, now: float, idle: bool, environment: Path, dry: bool) -> list[StaleFiles]:
    """Remove what is older than `older` seconds at the time `now`, and return it; with `dry`, only return it.

    `idle` says that no job has the machine, and that none can get it before this returns. `environment` is the one of
    the asking Herringbone.
    """
    index, keepers = JobIndex(home.index), Keepers(home)
    records = {record.name: record for record in index.all()}
    removed, remaining = [], []
    # Folders without a row, too: `forget` removes the row first, and may be killed before the folder is gone.
    for name in sorted({*records, *_names(home.path / "jobs")}):
        folder = home.job(name).path
        # A job whose machines retry it needs what its earlier attempts left, and may be between two attempts.
        age = float("-inf") if keepers.keeps(name) else now - _end(folder, records.get(name))
        if age < older:
            remaining.append(folder)
            continue
        files = _remove(StaleFiles(kind="job", name=name, size=0, age=age), folder, dry=dry)
        # The row goes last, and only with its folder: a failed removal is tried again by the next clean-up.
        if name in records and not dry and not files.trouble:
            index.remove(name)
        removed.append(files)
    if idle:
        removed += _unused(home, remaining, older=older, now=now, environment=environment, dry=dry)
    return removed


def _unused(
    home: Home, remaining: list[Path], *, older: float, now: float, environment: Path, dry: bool
) -> Iterator[StaleFiles]:
    """Remove what no job in the folders `remaining` uses, and yield it."""
    uses = [_uses_of(folder) for folder in remaining]
    in_use = {
        "code": {f"{job.code}.tar.gz" for job in uses},
        "data": {digest for job in uses for digest in job.data},
        # The asking agent runs in its environment at this moment.
        "environments": {environment.name, *(job.environment for job in uses)},
        # No job names these: a start makes them again from requirements.txt.
        "cache/environments": set(),
        "cache/images": set(),
    }
    for kind, names in in_use.items():
        for name in sorted(_names(home.path / kind) - names):
            path = home.path / kind / name
            # Creating an entry inside a folder changes the folder's own time; the marker's time stays.
            ready = path / READY
            with suppress(OSError):
                age = now - (ready if ready.exists() else path).lstat().st_mtime
                # A lock's file stays: another connection may hold or await it.
                if age >= older and path.suffix != ".lock":
                    yield _remove(StaleFiles(kind=kind, name=name, size=0, age=age), path, dry=dry)


def _end(folder: Path, record: JobRecord | None) -> float:
    """Return the end of a job: infinity while it runs, and the folder's own time when no row knows the folder."""
    if record is not None:
        return record.ended or record.created if record.done else float("inf")
    with suppress(OSError):
        return folder.lstat().st_mtime
    return float("inf")


def _uses_of(folder: Path) -> Uses:
    try:
        return msgspec.json.decode((folder / USES).read_bytes(), type=Uses)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return Uses(code="", data=(), environment="")


def _remove(files: StaleFiles, path: Path, *, dry: bool) -> StaleFiles:
    files.size = size_of(path)
    if dry:
        return files
    try:
        remove(path)
    except OSError as error:
        files.trouble = f"{error.filename or path}: {error.strerror}"
    return files


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - the names are enough
    except OSError:
        return set()
