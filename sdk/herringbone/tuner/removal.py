"""Remove searches that are over, with the jobs of their trials.

[1] remove_job    each trial's job; a search of which a job stays, stays, too
[2] rename        the search's folder gets a hidden name, so the name is free
[3] remove        the hidden folder goes; the next removal finishes one that was interrupted
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from herringbone.backends.removal import Removal, remove_job
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.system.disk import remove, size_of
from herringbone.tuner.definition import check_tuning_name
from herringbone.tuner.store import TuningStore
from herringbone.tuner.tuning import tuning_names
from herringbone_contract.errors import HerringboneError, InputError, JobNotFoundError


def remove_tunings(names: Iterable[str], home: Home, *, dry_run: bool = False) -> list[Removal]:
    """Remove tuning jobs by name, with the jobs of their trials; with `dry_run`, only measure.

    >>> [removal.size for removal in remove_tunings(["digits"], find_home(), dry_run=True)]      # doctest: +SKIP
    [12345678]

    Every search is tried; one that cannot be removed has an `error`. SageMaker keeps its own.
    """
    if not dry_run:
        for left in home.tunings.glob(".removed-*"):
            with suppress(OSError):
                remove(left)
    removals = []
    for name in dict.fromkeys(names):
        try:
            removals.append(_remove(TuningStore(home.tuning(check_tuning_name(name))), home, dry_run=dry_run))
        except (HerringboneError, OSError) as error:
            removals.append(Removal(name=name, error=f"tuning job {name} cannot be removed: {error}"))
    return removals


def select_tunings(older_than: float, home: Home, *, now: float | None = None) -> list[str]:
    """Return the searches of own hosts that ended more than `older_than` seconds ago, sorted by name."""
    now = time.time() if now is None else now
    states = {name: TuningStore(home.tuning(name)).state() for name in tuning_names(home)}
    return [name for name, state in states.items() if state.done and now - (state.ended or 0.0) >= older_than]


def _remove(store: TuningStore, home: Home, *, dry_run: bool) -> Removal:
    if not store.path.is_dir():
        raise JobNotFoundError(f"there is none in {home.tunings}; `herringbone tune ls` shows them")
    if not store.exists:
        size = size_of(store.path)
        if not dry_run:
            _remove_folder(store.path)
        return Removal(name=store.name, size=size, elsewhere="SageMaker keeps its tuning job")
    # No searcher begins meanwhile.
    with store.locked() as is_mine:
        if not (is_mine and store.state().done):
            raise InputError(f"it is not over: stop it first (`herringbone tune stop {store.name}`)")
        jobs, size, count = JobIndex(home.index), size_of(store.path), 0
        for trial in store.trials():
            # The user may have removed it, and given its name to another job.
            with suppress(JobNotFoundError):
                if jobs.get(trial.job).created <= (trial.ended or trial.proposed):
                    removal = remove_job(trial.job, dry_run=dry_run, home=home)
                    if removal.error:
                        raise InputError(f"job {trial.job}: {removal.error}")
                    size, count = size + removal.size, count + 1
        if not dry_run:
            _remove_folder(store.path)
    return Removal(name=store.name, size=size, elsewhere=f"with {count} job{'s' * (count != 1)} of trials")


def _remove_folder(folder: Path) -> None:
    hidden = folder.with_name(f".removed-{folder.name}-{os.urandom(6).hex()}")
    folder.rename(hidden)
    remove(hidden)
