"""The list of jobs: each job's row, and the newest progress and metrics, read from the ends of its files of events."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from herringbone.backends.listing import all_jobs
from herringbone.events.source import by_time, decode_lines, tail
from herringbone.events.summary import summary_of
from herringbone.events.view import JobView
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.tuner.look import TuningLook
from herringbone.tuner.store import TrialRecord
from herringbone.views.page.data import row_data
from herringbone.views.page.tunings import trial_label, tuning_data
from herringbone.views.tunings.looks import Tunings

_MAX_FILES = 64


class Summaries:
    """The lines of the list; the events of a job are read again only when its files have changed.

    >>> [line["status"] for line in Summaries(home, Tunings(home)).lines()]         # doctest: +SKIP
    ['InProgress', 'Completed']
    """

    def __init__(self, home: Home, tunings: Tunings) -> None:
        self._home, self._tunings = home, tunings
        self._lock = threading.Lock()
        self._views: dict[str, tuple[object, JobView]] = {}

    def lines(self) -> list[dict[str, Any]]:
        """Return a line for each job, the newest first."""
        with self._lock:
            records, now = all_jobs(), time.time()
            failures = JobIndex(self._home.index).failures()
            known = {record.name for record in records}
            self._views = {name: seen for name, seen in self._views.items() if name in known}
            trials = self._tunings.trials_of_jobs()
            return [
                row_data(
                    record,
                    summary_of(self._view(record.name), running=not record.done, now=now),
                    now=now,
                    failure=failures.get(record.name),
                )
                | {"trial": _label(trials.get(record.name))}
                for record in records
            ]

    def trial(self, job: str) -> dict[str, Any] | None:
        """Return the trial that a job is, None for any other job."""
        return _label(self._tunings.trials_of_jobs().get(job))

    def tuning(self, look: TuningLook, *, now: float) -> dict[str, Any]:
        """Return a search for its page, with the newest values of the trials that run."""
        wanted = {record.job for record in look.trials}
        # The searcher looks at its running jobs, so nobody else has to ask their backends.
        rows = JobIndex(self._home.index).summaries() if wanted else []
        jobs = {record.name: record for record in rows if record.name in wanted}
        running = [record.job for record in look.trials if not record.done]
        with self._lock:
            newest = {job: self._view(job).last(look.definition.metric) for job in running}
        return tuning_data(look, jobs, newest, now=now)

    def _view(self, name: str) -> JobView:
        files = sorted(self._home.job(name).logs.glob("*.events"))[:_MAX_FILES]
        stamp = [(path, state.st_size, state.st_mtime_ns) for path in files if (state := _state(path)) is not None]
        seen = self._views.get(name)
        if seen is None or seen[0] != stamp:
            events = by_time(decode_lines(tail(path)[0]) for path in files)
            seen = self._views[name] = (stamp, JobView().take_all(events))
        return seen[1]


def _label(trial: tuple[TuningLook, TrialRecord] | None) -> dict[str, Any] | None:
    return None if trial is None else trial_label(trial[0].definition, trial[1])


def _state(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
