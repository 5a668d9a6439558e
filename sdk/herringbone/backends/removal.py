"""Remove jobs that are over: their rows, their folders, and what they left on other machines.

    [1] backend.describe    the job's state at this moment; a job that runs is refused
    [2] backend.forget      other machines remove what they have of the job
    [3] index.holding       while nobody else writes to the index, the folder gets a hidden name, and the row goes
    [4] disk.remove         the hidden folder goes, which may take minutes

A process that is killed before [3] has changed nothing here. After [3], the name is free, and the next removal of any
job finishes [4]. A row without a folder, and a folder without a row, are removed in the same way.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

from herringbone.backends.facts import add_facts, find_facts
from herringbone.backends.listing import all_jobs
from herringbone.backends.registry import backend_named
from herringbone.records.description import own_folder
from herringbone.records.home import Home, JobFolder, find_home
from herringbone.records.index import TERMINAL, JobIndex, JobRecord
from herringbone.system.disk import remove, size_of
from herringbone_contract.constants import JOB_NAME_PATTERN
from herringbone_contract.errors import HerringboneError, IndexBusyError, InputError, JobNotFoundError, OptionError
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE
from herringbone_contract.safe_tree import is_empty

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend

_HIDDEN = re.compile(r"\.removed-(.+)-[0-9a-f]{12}")
_ROOM_OF_THE_INDEX_BYTES = 1 << 20
# Entries of a job's folder, by which a folder without a row is known as one.
_MARKS = ("logs", "hosts", "controller.log", "exports")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The removal of one job, done or only planned.

    `size` is the number of bytes on the disk that it frees. `model` is the address of the packed model that stays, and
    `elsewhere` says what stays outside of this machine. `error` says why something of the job could not be removed.
    """

    name: str
    size: int = 0
    model: str | None = None
    elsewhere: str = ""
    error: str = ""


def remove_jobs(
    names: Iterable[str], *, keep_model: bool = False, dry_run: bool = False, home: Home | None = None
) -> list[Removal]:
    """Remove jobs by name, and finish removals that were interrupted; with `dry_run`, only measure.

    >>> [removal.size for removal in remove_jobs(["digits-1"], dry_run=True)]      # doctest: +SKIP
    [12345678]

    Every job is tried; a job that cannot be removed has an `error`. With `keep_model`, a packed model stays, and so
    does the job's row. See `remove_job`.
    """
    home = find_home() if home is None else home
    removals = [] if dry_run else _finish_interrupted(home)
    for name in dict.fromkeys(names):
        try:
            removals.append(remove_job(name, keep_model=keep_model, dry_run=dry_run, home=home))
        except HerringboneError as error:
            removals.append(Removal(name=name, error=str(error)))
    return removals


def remove_job(
    name: str,
    backend: Backend | None = None,
    *,
    keep_model: bool = False,
    dry_run: bool = False,
    home: Home | None = None,
) -> Removal:
    """Remove one job that is over; see `TrainingJob.remove`.

    Raises `InputError` for a job that runs, or one with `keep_model` whose model is not packed; `JobNotFoundError` for
    a name without row and folder; the backend's errors when a running job's state cannot be found out.
    """
    home = find_home() if home is None else home
    folder = home.job(name).path
    record = _settled(name, home, backend)
    if record is None and not os.path.lexists(folder):
        # The error names similar jobs.
        JobIndex(home.index).get(name)
    model = _model_to_keep(record, folder) if keep_model and record is not None else None
    size = size_of(folder) if model is None else sum(map(size_of, _besides(model, folder)))
    copied = None if record is None else _copied_checkpoints(record, home)
    removal = Removal(name=name, size=size + (0 if copied is None else size_of(copied)), model=model)
    if dry_run:
        return removal
    elsewhere = "" if record is None else (backend or backend_named(record.backend)).forget(record)
    if folder.is_symlink():
        elsewhere = f"{folder} was a link; the folder {os.readlink(folder)} stays"  # noqa: PTH115
    if model is not None and record is not None:
        # `describe` shows them when the log is gone, too.
        backend = backend or backend_named(record.backend)
        add_facts(JobIndex(home.index), name, find_facts(record, backend))
    hidden = folder.with_name(f".removed-{name}-{os.urandom(6).hex()}")
    try:
        try:
            _set_aside(record, folder, hidden, home, model=model)
        except IndexBusyError:
            if disk_usage(home.path).free > _ROOM_OF_THE_INDEX_BYTES:
                raise
            # The row cannot go while the disk is full. What the job's hosts wrote takes the most of it.
            remove(folder / "hosts")
            _set_aside(record, folder, hidden, home, model=model)
    except OSError as error:
        raise InputError(f"job {name} cannot be removed: {_shown(error, folder)}; nothing was changed") from error
    try:
        remove(hidden)
        if copied is not None:
            remove(copied)
    except OSError as error:
        return Removal(name=name, model=model, elsewhere=elsewhere, error=_not_removed(error, hidden))
    return Removal(name=name, size=removal.size, model=model, elsewhere=elsewhere)


def select_jobs(
    *, older_than: float = 0.0, statuses: Collection[str] = (), now: float | None = None, home: Home | None = None
) -> list[str]:
    """Return the jobs that ended more than `older_than` seconds ago, with one of the statuses: names, oldest first.

    >>> select_jobs(older_than=30 * 86_400, statuses=["Failed"])           # doctest: +SKIP
    ['digits-1', 'digits-7']

    Without statuses all jobs that are over count, and folders of jobs without a row, by the folder's age. Raises
    `OptionError` for a status that no job ends with.
    """
    if unknown := sorted(set(statuses) - set(TERMINAL)):
        raise OptionError(
            f"--status {unknown[0]!r}: jobs end as {', '.join(TERMINAL)}; others run, and are not removed"
        )
    home = find_home() if home is None else home
    now = time.time() if now is None else now
    # The state at this moment, as in the list of jobs: a row lags behind while a disk is full, or a controller was
    # killed.
    records = {record.name: record for record in all_jobs(home=home)}
    ends = {
        name: record.created if record.ended is None else record.ended
        for name, record in records.items()
        if record.done and (not statuses or record.status in statuses)
    }
    if not statuses:
        ends |= {path.name: path.lstat().st_mtime for path in _folders(home) if path.name not in records}
    return sorted((name for name, end in ends.items() if now - end >= older_than), key=lambda name: ends[name])


def _folders(home: Home) -> list[Path]:
    """Return the folders of jobs; other entries there are not ours to remove without being named."""
    try:
        paths = list((home.path / "jobs").iterdir())
    except OSError:
        return []
    return [
        path
        for path in paths
        if JOB_NAME_PATTERN.fullmatch(path.name)
        and not path.is_symlink()
        and any((path / mark).exists() for mark in _MARKS)
    ]


def _settled(name: str, home: Home, backend: Backend | None) -> JobRecord | None:
    """Return the row of a job that is over, None without a row. Raises `InputError` for a job that runs."""
    try:
        record = JobIndex(home.index).get(name)
    except JobNotFoundError:
        return None
    if not record.done:
        # A controller that was killed has not written the end of its job.
        try:
            record = (backend or backend_named(record.backend)).describe(name)
        except JobNotFoundError:
            # The service no longer knows the job, so that nothing of it runs.
            return record
    if not record.done:
        raise InputError(f"job {name} is {record.status}: stop it first (`herringbone stop {name}`)")
    return record


def _model_to_keep(record: JobRecord, folder: Path) -> str | None:
    """Return the packed model of a job, None without one. Raises `InputError` for a model that is not packed."""
    if record.model is not None:
        inside = folder / "output" / Path(record.model).name
        if inside.exists() or "://" in record.model or Path(record.model).exists():
            return record.model
        return None
    if record.backend == "ssh" and record.service is not None and not JobFolder(folder).fetched.exists():
        raise InputError(
            f"job {record.name} is {record.status}, and what its machines have of it was not fetched; fetch it first "
            f"(`herringbone repack {record.name}`), or remove the job without keeping its model"
        )
    hosts = folder / "hosts"
    for host in sorted(hosts.iterdir()) if hosts.is_dir() else ():
        if not _has_no_model(host / "ml"):
            model = host / "ml" / INSIDE.model
            raise InputError(
                f"job {record.name} is {record.status} and has files in {model}, but no packed model; "
                f"pack it first (`herringbone repack {record.name}`), or remove the job without keeping its model"
            )
    return None


def _copied_checkpoints(record: JobRecord, home: Home) -> Path | None:
    """Return the folder that `resume` made for a job, unless another job names it, too; None without one."""
    folder = own_folder(record.plan_dict, "checkpoint_s3_uri")
    if folder is None or folder.parent != home.checkpoints:
        return None
    others = (other for other in JobIndex(home.index).all() if other.name != record.name)
    return None if any(own_folder(other.plan_dict, "checkpoint_s3_uri") == folder for other in others) else folder


def _has_no_model(base: Path) -> bool:
    try:
        return is_empty(base, str(INSIDE.model))
    except OSError:
        return False


def _set_aside(record: JobRecord | None, folder: Path, hidden: Path, home: Home, *, model: str | None) -> None:
    """Move what is to be removed to `hidden`, and take the row away unless the model stays."""
    home.make()
    try:
        _hide(record, folder, hidden, home, model=model)
    except IndexBusyError:
        # The row has stayed, as on a full disk.
        if hidden.is_dir() and model is None:
            hidden.rename(folder)
        raise


def _hide(record: JobRecord | None, folder: Path, hidden: Path, home: Home, *, model: str | None) -> None:
    with JobIndex(home.index).holding(folder.name, remove=model is None) as row:
        # Another process removed the job meanwhile, and the name may belong to a new job by now.
        if (None if row is None else row.created) != (None if record is None else record.created):
            raise JobNotFoundError(f"job {folder.name} was removed by another process")
        if not os.path.lexists(folder):
            return
        if model is None:
            folder.rename(hidden)
            return
        hidden.mkdir(mode=0o700)
        for number, path in enumerate(_besides(model, folder)):
            path.rename(hidden / str(number))


def _besides(model: str, folder: Path) -> list[Path]:
    """Return the entries of a job's folder that are not its packed model."""
    output = folder / "output"
    entries = [path for path in folder.iterdir() if path != output] if folder.is_dir() else []
    return entries + ([path for path in output.iterdir() if path.name != Path(model).name] if output.is_dir() else [])


def _finish_interrupted(home: Home) -> list[Removal]:
    """Remove the hidden folders of removals that were killed, or that failed."""
    removals = []
    jobs = home.path / "jobs"
    for path in sorted(jobs.glob(".removed-*")) if jobs.is_dir() else ():
        match = _HIDDEN.fullmatch(path.name)
        if match is None:
            continue
        size, error = size_of(path), ""
        try:
            remove(path)
        except OSError as reason:
            size, error = 0, _not_removed(reason, path)
        removals.append(Removal(name=match[1], size=size, error=error))
    return removals


def _not_removed(error: OSError, hidden: Path) -> str:
    return (
        f"not all of it could be removed: {_shown(error, hidden)}; the rest is in {hidden}, and the next "
        "`herringbone rm` tries again. Files of another user need that user, or `sudo rm -r`"
    )


def _shown(error: OSError, place: Path) -> str:
    return f"{printable(str(error.filename or place))}: {error.strerror}"
