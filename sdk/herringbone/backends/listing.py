"""All jobs of this machine with their state at this moment, or the last known state while a service is silent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from herringbone.backends.lifecycle import unseen
from herringbone.backends.registry import backend_named
from herringbone.records.home import Home, find_home
from herringbone.records.index import (
    COMPLETED,
    DOWNLOADING,
    FAILED,
    IN_PROGRESS,
    INTERRUPTED,
    LIMITS,
    PENDING,
    RESTARTING,
    STARTING,
    STOPPED,
    STOPPING,
    TRAINING,
    UPLOADING,
    JobIndex,
    JobRecord,
)
from herringbone.records.standstill import standstill
from herringbone.slots.places import LineLook, waits_here
from herringbone_contract.errors import HerringboneError, ServiceError

# The words by which users choose jobs: the statuses, and the secondary statuses that say more than those.
STATUSES = (
    *(IN_PROGRESS, COMPLETED, FAILED, STOPPING, STOPPED),
    *(PENDING, STARTING, DOWNLOADING, TRAINING, UPLOADING, RESTARTING),
    *(*LIMITS.values(), "MaxWaitTimeExceeded", INTERRUPTED),
)
# The user waits for the list.
_PATIENCE_SECONDS = 10.0


def all_jobs(
    say: Callable[[str], None] | None = None,
    *,
    patience: float = _PATIENCE_SECONDS,
    line: LineLook | None = None,
    home: Home | None = None,
) -> list[JobRecord]:
    """Return a summary of every job known on this machine, the newest first; see `JobIndex.summaries`.

    Jobs that are over are not asked about.

    >>> [record.status for record in all_jobs(print)]        # doctest: +SKIP
    ['InProgress', 'Completed']

    `say` gets the errors of the backends. Services have `patience` seconds for all answers together. `line` is a look
    at this machine's line that the caller needs, too.
    """
    home = home or find_home()
    index = JobIndex(home.index)
    running: dict[tuple[str, str], list[str]] = {}
    jobs = index.running()
    # One look at the line instead of a thousand at their processes. A job that is not in it is asked about below.
    line = line or LineLook(home)
    for record in jobs:
        if not (waits_here(record) and record.name in line.jobs):
            # A machine that does not answer must not keep those of other jobs from being asked.
            group = record.name if record.backend == "ssh" else ""
            running.setdefault((record.backend, group), []).append(record.name)
    # Several threads write to both; `list.append` and `dict.__setitem__` are atomic in CPython.
    errors: list[str] = []
    looks: dict[str, JobRecord] = {}
    askers = [
        # Daemons: a service that never answers must not keep the program from ending.
        threading.Thread(target=_look, args=(backend, names, looks, errors), daemon=True)
        for (backend, _), names in running.items()
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(patience)
    if any(asker.is_alive() for asker in askers):
        errors.append(f"no answer within {patience:.0f} s: some states are as they were last seen")
    if say is not None:
        for error in errors:
            say(error)
    # The row of a job that is over may be newer than the index, which cannot always be written.
    return [looks.get(record.name, record) if not record.done else record for record in index.summaries()]


def has_status(record: JobRecord, wanted: Collection[str]) -> bool:
    """Report whether a job has one of the statuses, or secondary statuses, `wanted`; True without any.

    >>> row = JobRecord(name="a", backend="local", plan="{}", created=0.0, status="Stopped", secondary_status="Stopped")
    >>> has_status(row, ()), has_status(row, ("Failed", "Stopped")), has_status(row, ("Failed",))
    (True, True, False)
    """
    return not wanted or record.status in wanted or record.secondary_status in wanted


def _look(name: str, jobs: list[str], looks: dict[str, JobRecord], errors: list[str]) -> None:
    """Update each job's row; after the first error of a service, its other jobs are not asked about."""
    try:
        backend = backend_named(name)
    except HerringboneError as error:
        errors.append(str(error))
        return
    for job in jobs:
        try:
            looks[job] = backend.describe(job)
            errors += filter(None, (unseen(looks[job]), standstill(looks[job], backend.home)))
        except ServiceError as error:
            errors.append(f"{error}; states of {name} jobs are as they were last seen")
            return
        except HerringboneError as error:
            errors.append(str(error))
