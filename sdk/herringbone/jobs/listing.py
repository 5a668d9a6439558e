"""All jobs of this machine, as they are at this moment, or as they were last seen where a service is silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from herringbone.backends.registry import backend_named
from herringbone.jobs.home import find_home
from herringbone.jobs.index import JobIndex, JobRecord
from herringbone_contract.errors import AwsError, HerringboneError

# A list is looked at by somebody who waits for it.
_PATIENCE_SECONDS = 10.0


def all_jobs(say: Callable[[str], None] | None = None, *, patience: float = _PATIENCE_SECONDS) -> list[JobRecord]:
    """Return every job known on this machine, the newest first; those that are over are not asked for.

    >>> [record.status for record in all_jobs(print)]        # doctest: +SKIP
    ['InProgress', 'Completed']

    `say` gets what kept a job's state from being read. Services have `patience` seconds for all answers together.
    """
    index = JobIndex(find_home().index)
    running: dict[str, list[str]] = {}
    for record in index.all():
        if not record.done:
            running.setdefault(record.backend, []).append(record.name)
    troubles: list[str] = []
    askers = [
        # No thread of ours may keep the program from ending while a service is silent.
        threading.Thread(target=_look, args=(backend, names, troubles), daemon=True)
        for backend, names in running.items()
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(patience)
    if any(asker.is_alive() for asker in askers):
        troubles.append(f"no answer within {patience:.0f} s: some states are as they were last seen")
    if say is not None:
        for trouble in troubles:
            say(trouble)
    return index.all()


def _look(name: str, jobs: list[str], troubles: list[str]) -> None:
    """Have each job's row brought up to date; the first silence of a service stands for the others."""
    try:
        backend = backend_named(name)
    except HerringboneError as error:
        troubles.append(str(error))
        return
    for job in jobs:
        try:
            backend.describe(job)
        except AwsError as error:
            troubles.append(f"{error}; states of {name} jobs are as they were last seen")
            return
        except HerringboneError as error:
            troubles.append(str(error))
