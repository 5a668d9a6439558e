"""Exports of submitted jobs, live by a detached process for each of `track` and `notify`.

Afterwards, `herringbone export` and `herringbone notify` send what is missing.

fit --> start_exporters --> python -m herringbone.trackers JOB DESTINATION      one process a destination
                                |
                                follows the job on every backend alike, and ends with the job
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.detached import DetachedJobs
from herringbone.backends.registry import backend_of_job
from herringbone.backends.review.trackers import check_installed
from herringbone.controller.log_files import stamp
from herringbone.plan.destinations import Destination, parse_destinations
from herringbone.plan.notify import KINDS, Notify, absolute_notify
from herringbone.records.job_events import append_lines
from herringbone.show.console import Console
from herringbone.system.detached_process import start_detached
from herringbone.system.processes import identity, is_alive, place
from herringbone.system.user_paths import current_folder
from herringbone.trackers.exporter import (
    LIVE_PATIENCE_SECONDS,
    NOTICE_PATIENCE_SECONDS,
    PATIENCE_SECONDS,
    Describe,
    Export,
    Exporter,
    MakeFold,
    SubmittedJob,
)
from herringbone.trackers.fold import Fold, Row
from herringbone.trackers.notices import Notices
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
    """Start a detached process for each destination of `track` and `notify`; return without waiting.

    An exporter that cannot be started is noted in the job's folder: the job runs without it.
    """
    # Those of earlier jobs that are over would stay as zombies.
    for child in [child for child in _children if not is_alive(child)]:
        _children.discard(child)
    try:
        folder = make_exports(backend.home.job(plan.job_name))
        destinations: list[Destination | Notify] = [*parse_destinations(plan.options.track, base=Path(plan.folder))]
        for destination in [*destinations, *plan.options.notify]:
            export_place = Place(folder, destination.file_name)
            state = ExportState(str(destination), where=place())
            word = state.destination if isinstance(destination, Destination) else destination.file_name
            try:
                state.process = _start([*command, plan.job_name, word], export_place.log, folder)
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


def notices_of(plan: Mapping[str, Any]) -> tuple[Notify, ...]:
    """Return the destinations of notices of a job, by the plan of its row."""
    return msgspec.convert(plan.get("options", {}).get("notify", ()), tuple[Notify, ...])


def send_notices(name: str, describe: Describe) -> list[Export]:
    """Send the notices of a job that its destinations do not have; see `herringbone notify`."""
    backend = backend_of_job(name)
    destinations = notices_of(backend.describe(name).plan_dict)
    if not destinations:
        raise InputError(f"job {name}: it has no option notify, so nobody gets word of it")
    return [_export(SubmittedJob(name, backend, describe), destination) for destination in destinations]


def follow_job(
    name: str,
    backend: Backend,
    describe: Describe,
    destination: Destination | Notify,
    *,
    tracker: OpenTracker = open_tracker,
) -> Export:
    """Export a job until it is over; the whole life of the detached process."""
    job = SubmittedJob(name, backend, describe)
    patience = LIVE_PATIENCE_SECONDS if isinstance(destination, Destination) else NOTICE_PATIENCE_SECONDS
    return _export(job, destination, follow=True, patience=patience, tracker=tracker)


def _export(
    job: SubmittedJob,
    destination: Destination | Notify,
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
        fold: MakeFold
        to: Destination | Notify
        if isinstance(destination, Destination):
            fold, to, place_of_files = partial(Fold, destination.tracker, system=system), destination, folder
        else:
            # Relative paths, also those of a command's own words, count from the job's folder.
            place_of_files = Path(job.plan.get("folder", "/"))
            fold, to = partial(_notices, job, destination), absolute_notify([destination], place_of_files)[0]
        exporter = Exporter(
            job,
            lambda: tracker(to, place_of_files),
            export_place,
            str(destination),
            fold=fold,
            say=partial(_say, job, [] if isinstance(destination, Destination) else ["algo-1"]),
            progress=progress,
        )
        # The trackers' packages print what standard output is not for, such as --json.
        stack.enter_context(redirect_stdout(sys.stderr))
        return exporter.run(follow=follow, pause=max(_SHORTEST_PAUSE, job.backend.pace.longest), patience=patience)


def _notices(job: SubmittedJob, destination: Notify, rows: list[Row]) -> Notices:
    return Notices(job.plan, created=job.created, kinds=destination.on or KINDS, rows=rows)


def _say(job: SubmittedJob, in_log: list[str], error: str) -> None:
    """Write an error that is waited out into the export's own log, and once into the log of a job of this machine."""
    Console(sys.stderr).say(f"job {job.name}: {error}")
    # No other machine writes these logs, whose order a line from here would disturb.
    if in_log and isinstance(job.backend, DetachedJobs):
        line = f"[{in_log.pop()}] notify: {error}\n"
        append_lines(job.backend.home.job(job.name).log("algo-1"), stamp(time.time()) + line.encode())
