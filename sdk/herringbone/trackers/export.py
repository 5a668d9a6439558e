"""Exports of submitted jobs: afterwards by `herringbone export`, and live by a detached process for `track`.

fit --> start_exporters --> python -m herringbone.trackers JOB DESTINATION      one process a destination
                                |
                                follows the job on every backend alike, and ends with the job
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.registry import backend_of_job
from herringbone.backends.review.trackers import check_installed
from herringbone.plan.destinations import Destination, parse_destinations
from herringbone.show.console import Console
from herringbone.system.detached_process import start_detached
from herringbone.system.processes import identity, is_alive, place
from herringbone.system.user_paths import current_folder
from herringbone.trackers.exporter import (
    LIVE_PATIENCE_SECONDS,
    PATIENCE_SECONDS,
    Describe,
    Export,
    Exporter,
    SubmittedJob,
)
from herringbone.trackers.place import ExportState, Place, make_exports
from herringbone.trackers.tracker import OpenTracker, open_tracker
from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Backend

EXPORTER = (sys.executable, "-m", "herringbone.trackers")
# Events arrive once a second; a service is asked less often.
_SHORTEST_PAUSE = 1.0
# The exporters that this process has started and not yet collected.
_children: set[str] = set()


def start_exporters(plan: JobPlan, backend: Backend, *, command: Sequence[str] = EXPORTER) -> None:
    """Start a detached process for each destination of the plan's option `track`; return without waiting.

    An exporter that cannot be started is noted in the job's folder: the job runs without it.
    """
    # Those of earlier jobs that are over would stay as zombies.
    for child in [child for child in _children if not is_alive(child)]:
        _children.discard(child)
    try:
        folder = make_exports(backend.home.job(plan.job_name))
        for destination in parse_destinations(plan.options.track, base=Path(plan.folder)):
            export_place = Place(folder, destination.file_name)
            state = ExportState(str(destination), where=place())
            try:
                state.process = _start([*command, plan.job_name, str(destination)], export_place.log, folder)
            except OSError as error:
                state.error = f"the exporter could not be started: {error}"
            export_place.write_first(state)
    # A full disk: the job has been submitted, and no error of a tracker may reach the caller.
    except OSError as error:
        name = plan.job_name
        Console(sys.stderr).say(
            f"job {name}: its metrics are not exported: {error}; `herringbone export {name}` sends them later"
        )


def _start(command: Sequence[str], log: Path, folder: Path) -> str | None:
    with log.open("wb") as output:
        # The user's own variables have the tracker's credentials.
        exporter = start_detached(command, log=output, folder=folder)
    assert exporter.stdin is not None
    exporter.stdin.close()
    name = identity(exporter.pid)
    if name is not None:
        _children.add(name)
    # It outlives this Python on purpose, which Popen would report as a leak.
    exporter.returncode = 0
    return name


def export_job(
    name: str,
    describe: Describe,
    to: str | Iterable[str] | None = None,
    *,
    system: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Export]:
    """Send a job's metrics so far to each destination; see `TrainingJob.export`."""
    backend = backend_of_job(name)
    destinations = destinations_of(name, backend, to)
    # Before the first one is exported, and before a folder is made.
    check_installed(destinations, where="export")
    return [
        _export(SubmittedJob(name, backend, describe), destination, system=system, progress=progress)
        for destination in destinations
    ]


def destinations_of(name: str, backend: Backend, to: str | Iterable[str] | None) -> tuple[Destination, ...]:
    """Return the destinations that the caller names, else those of the job's option `track`."""
    if to is not None:
        return parse_destinations([to] if isinstance(to, str) else list(to), base=current_folder(), where="export")
    plan = backend.describe(name).plan_dict
    texts = plan.get("options", {}).get("track") or ()
    if not texts:
        raise InputError(f"job {name}: it has no option track, so name a destination: --to tensorboard:runs")
    return parse_destinations(texts, base=Path(plan.get("folder", "/")), where="export")


def follow_job(
    name: str, backend: Backend, describe: Describe, destination: Destination, *, tracker: OpenTracker = open_tracker
) -> Export:
    """Export a job until it is over; the whole life of the detached process."""
    job = SubmittedJob(name, backend, describe)
    return _export(job, destination, follow=True, patience=LIVE_PATIENCE_SECONDS, tracker=tracker)


def _export(
    job: SubmittedJob,
    destination: Destination,
    *,
    system: bool = False,
    follow: bool = False,
    patience: float = PATIENCE_SECONDS,
    progress: Callable[[int], None] = lambda _: None,
    tracker: OpenTracker = open_tracker,
) -> Export:
    with closing(job), ExitStack() as stack:
        folder = make_exports(job.backend.home.job(job.name))
        export_place = Place(folder, destination.file_name)
        stack.enter_context(export_place.held(job.name))
        exporter = Exporter(
            job,
            lambda: tracker(destination, folder),
            export_place,
            str(destination),
            system=system,
            say=lambda error: Console(sys.stderr).say(f"job {job.name}: {error}"),
            progress=progress,
        )
        # The trackers' packages print what standard output is not for, such as --json.
        stack.enter_context(redirect_stdout(sys.stderr))
        return exporter.run(follow=follow, pause=max(_SHORTEST_PAUSE, job.backend.pace.longest), patience=patience)
