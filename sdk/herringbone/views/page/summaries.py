"""The list of jobs: each job's row, and the summary of its events, which is that of the job's own page."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herringbone.backends.listing import all_jobs
from herringbone.events.source import FileEvents
from herringbone.events.summary import JobSummary, summary_of
from herringbone.events.view import JobView
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.slots.places import LineLook, place_texts
from herringbone.system.disk import stamp_of
from herringbone.tuner.look import TuningLook
from herringbone.tuner.store import TrialRecord
from herringbone.views.page.data import row_data
from herringbone.views.page.tunings import trial_label, tuning_data
from herringbone.views.tunings.looks import Tunings

# Events that one look reads: a long list of long jobs takes several looks.
_MAX_EVENTS = 200_000
# Jobs whose files stay open between two looks; others that run have no facts of their events in the list.
_MAX_OPEN = 100


@dataclass
class _Events:
    """The events of one job as far as they are read; `is_whole` once all of them were."""

    source: FileEvents
    view: JobView = field(default_factory=JobView)
    is_whole: bool = False


class Summaries:
    """The lines of the list; of a job's events only those are read that have come since the last look.

    >>> [line["status"] for line in Summaries(home, Tunings(home)).lines()]         # doctest: +SKIP
    ['InProgress', 'Completed']
    """

    def __init__(self, home: Home, tunings: Tunings, *, most_events: int = _MAX_EVENTS) -> None:
        self._home, self._tunings, self._most_events = home, tunings, most_events
        # Held during a look: everything below changes only then.
        self._lock = threading.Lock()
        self._open: dict[str, _Events] = {}
        # Of a job that is over, its summary and the state of its files: its events may be millions.
        self._over: dict[str, tuple[object, JobSummary]] = {}
        self._left = 0

    def lines(self) -> list[dict[str, Any]]:
        """Return a line for each job, the newest first, without facts of events that are not all read yet."""
        with self._lock:
            line, now, self._left = LineLook(self._home), time.time(), self._most_events
            records = all_jobs(line=line)
            failures = JobIndex(self._home.index).failures()
            places, trials = place_texts(self._home, records, line), self._tunings.trials_of_jobs()
            self._forget({record.name for record in records})
            return [
                row_data(
                    record,
                    self._summary(record, now),
                    now=now,
                    failure=failures.get(record.name),
                    place=places.get(record.name, ""),
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
            self._left = self._most_events
            newest = {job: self._read(jobs[job]).view.last(look.definition.metric) for job in running if job in jobs}
        return tuning_data(look, jobs, newest, now=now)

    def close(self) -> None:
        """Close the files of events."""
        with self._lock:
            self._forget(set())

    def _forget(self, known: set[str]) -> None:
        self._over = {name: seen for name, seen in self._over.items() if name in known}
        for name in self._open.keys() - known:
            self._close(name)

    def _close(self, name: str) -> None:
        if (events := self._open.pop(name, None)) is not None:
            events.source.close()

    def _summary(self, record: JobRecord, now: float) -> JobSummary:
        stamp = [stamp_of(path) for path in self._paths(record)] if record.done else None
        known = self._over.get(record.name)
        if known is not None and known[0] == stamp:
            return known[1]
        events = self._read(record)
        if not events.is_whole:
            return JobSummary()
        summary = summary_of(events.view, running=not record.done, now=now)
        if record.done:
            self._over[record.name] = stamp, summary
            self._close(record.name)
        return summary

    def _read(self, record: JobRecord) -> _Events:
        """Read what has come of a job's events, as far as this look may."""
        paths = self._paths(record)
        events = self._open.get(record.name)
        if events is None or events.source.paths != paths:
            # A file has appeared: its events belong between those of the others.
            self._close(record.name)
            events = _Events(FileEvents(paths))
            if len(self._open) >= _MAX_OPEN:
                return events
            self._open[record.name] = events
        while self._left > 0:
            batch = events.source.read()
            events.is_whole = events.is_whole or not batch
            if not batch:
                break
            events.view.take_all(batch)
            self._left -= len(batch)
        return events

    def _paths(self, record: JobRecord) -> tuple[Path, ...]:
        hosts = (f"algo-{number}" for number in range(1, record.num_hosts + 1))
        return tuple(path for path in self._home.job(record.name).all_events(hosts) if path.exists())


def _label(trial: tuple[TuningLook, TrialRecord] | None) -> dict[str, Any] | None:
    return None if trial is None else trial_label(trial[0].definition, trial[1])
