"""Read many jobs at the same time, each at its backend's pace, so that one that does not answer delays no other.

    the thread of jobs     every second: which jobs are there? (the index, read again when its file has changed)
    a thread a job         describe, events, log -> publishes a Row, and a Detail on demand; ends with the job

Readers publish objects that never change, so whoever shows them needs no lock. All threads are daemons: a service that
never answers does not keep the program from ending.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.registry import backend_named
from herringbone.events.view import JobView
from herringbone.records.home import find_home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.logs import FileLogs
from herringbone.slots.places import place_texts
from herringbone.system.polling import Pace, Pauses
from herringbone.views.top.detail import MOST_LINES, Detail, detail_of
from herringbone.views.top.rows import Row, in_order, row_of
from herringbone.views.top.tunings import TuningReader, trial_row
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.errors import HerringboneError, JobNotFoundError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend, EventSource, LogSource
    from herringbone.records.logs import LogLine
    from herringbone.tuner.look import TuningLook
    from herringbone.tuner.store import TrialRecord

LOOK_SECONDS = 1.0
NUM_FINISHED = 10
# Threads. Jobs beyond are shown as the index knows them.
_MOST_READ = 100
# Of a log of own hosts only the end is read.
_LOG_BYTES = 64 * 1024
_MOST_LINE_CHARS = 2000
# A look that takes longer is worth a word.
_SILENT_SECONDS = 10.0
_WAIT_SECONDS = 0.005


class JobReader:
    """Reads one job: its state, events and last lines; each look continues where the last one ended.

    >>> JobReader(record).look().state                           # doctest: +SKIP
    'Training'

    One thread looks; any thread may read `row`, `record`, `detail` and `since`.
    """

    def __init__(
        self, record: JobRecord, *, metric: str | None = None, backend_named: Callable[[str], Backend] = backend_named
    ) -> None:
        self.name = record.name
        self.row = row_of(record, JobView(), now=time.time(), metric=metric)
        self.detail: Detail | None = None
        self.gone = False
        # The beginning of a look that has not ended yet.
        self.since: float | None = None
        self.wants_detail = threading.Event()
        self.record, self._metric, self._backend_named = record, metric, backend_named
        self._view = JobView()
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._live: dict[str, LogLine] = {}
        self._backend: Backend | None = None
        self._events: EventSource | None = None
        self._logs: LogSource | None = None
        self._wake = threading.Event()
        self.started = self.was_read = False

    def look(self) -> Row:
        """Read what is new, and publish the job's row; an error of the service is the row's `trouble`."""
        self.since = time.time()
        trouble = ""
        try:
            self._read()
        except JobNotFoundError:
            self.gone = True
        except (HerringboneError, OSError) as error:
            trouble = str(error).partition("\n")[0]
        self._publish(trouble)
        self.since, self.was_read = None, True
        return self.row

    def follow(self) -> None:
        """Look until the job is over, and close what was opened; a thread of its own runs this."""
        pauses = None
        while self.look().running and not self.gone:
            if pauses is None and self._backend is not None:
                pauses = Pauses(shown_pace(self._backend.pace))
            due = time.monotonic() + (LOOK_SECONDS if pauses is None else pauses.next())
            # Whoever opens the detail view of a job on a slow service gets at once what is known.
            while self._wake.wait(max(0.0, due - time.monotonic())):
                self._wake.clear()
                self._publish(self.row.trouble)
        self.close()

    def open_detail(self) -> None:
        """Publish a `Detail` from now on, at once if the thread of this job is between two looks."""
        self.wants_detail.set()
        self._wake.set()

    def stop_job(self) -> None:
        """Ask the job to stop, over a connection of its own: this reader's may be in use.

        Raises the backend's errors.
        """
        self._backend_named(self.record.backend).stop(self.name)

    def close(self) -> None:
        """Close files and connections."""
        for source in (self._events, self._logs):
            if source is not None:
                source.close()
        self._events = self._logs = None
        # The row and the detail stay; a job may have logged millions of values.
        self._view = JobView()

    def _read(self) -> None:
        if self._backend is None:
            # A backend a job: a connection that waits must not be waited for by another job's thread.
            self._backend = self._backend_named(self.record.backend)
        # The state first: what a job wrote before its end is read after it.
        self.record = self._backend.describe(self.name)
        if self._events is None:
            self._events = self._backend.events(self.name)
        # A service may deliver the end of a job late, and may then be waited for: the row is shown meanwhile.
        over, ended = self.record.done, self.record.ended
        if over:
            self._publish("")
        for events in self._events.rest(ended) if over else iter(self._events.read, []):
            self._view.take_all(events)
        if self._logs is None:
            logs = self._backend.logs(self.name)
            self._logs = FileLogs(logs.paths, last_bytes=_LOG_BYTES) if isinstance(logs, FileLogs) else logs
        for lines in self._logs.rest(ended) if over else iter(self._logs.read, []):
            for line in lines:
                self._take(line)
            # States of progress bars alone: what follows them comes at the next look.
            if all(line.live for line in lines) and not over:
                break

    def _take(self, line: LogLine) -> None:
        line = replace(line, text=line.text[:_MOST_LINE_CHARS])
        if line.live:
            self._live[line.prefix] = line
        else:
            self._live.pop(line.prefix, None)
            self._lines.append(line)

    def _publish(self, trouble: str) -> None:
        """Publish what is known."""
        newest = [*self._live.values()] or [*self._lines][-1:]
        last = newest[-1].text.rpartition("\r")[2].strip() if newest else ""
        row = row_of(self.record, self._view, now=time.time(), last_line=last, metric=self._metric, trouble=trouble)
        # The detail of a job that is over is made once, before its reader ends.
        if self.wants_detail.is_set() or not row.running:
            lines = (f"{line.prefix} {line.text}" for line in (*self._lines, *self._live.values()))
            self.detail = detail_of(row, self._view, lines, metric=self._metric)
        self.row = row


class Monitor:
    """The jobs of this machine, read by threads.

    >>> monitor = Monitor()
    >>> monitor.refresh(), monitor.wait(5.0)                     # doctest: +SKIP
    >>> [row.name for row in monitor.rows()]                     # doctest: +SKIP
    ['digits-2', 'digits-1']
    """

    def __init__(
        self,
        *,
        metric: str | None = None,
        num_finished: int = NUM_FINISHED,
        backend_named: Callable[[str], Backend] = backend_named,
    ) -> None:
        self._metric, self._num_finished, self._backend_named = metric, num_finished, backend_named
        self._home = find_home()
        self._path = self._home.index
        # The threads of jobs write to the index as well, so a short wait for its lock is enough.
        self._index = JobIndex(self._path, busy_seconds=1.0)
        # Replaced, never changed: other threads go through it.
        self._readers: dict[str, JobReader] = {}
        self._tunings = Tunings(self._home)
        # Replaced, never changed, as the readers are.
        self._tuning_readers: dict[str, TuningReader] = {}
        self._trials: dict[str, tuple[TuningLook, TrialRecord]] = {}
        # The places of jobs that wait in line, in words.
        self._places: dict[str, str] = {}
        self._seen: object = None
        self.trouble = ""

    def start(self) -> None:
        """Look for new jobs from now on, in a thread."""
        threading.Thread(target=self._follow, name="jobs", daemon=True).start()

    def refresh(self) -> None:
        """Look for new jobs and searches, and start a thread for each job that runs."""
        self._refresh_tunings()
        if (state := _state_of(self._path)) != self._seen:
            self._refresh_jobs(state)
        self._places = place_texts(self._home, [reader.record for reader in self._readers.values()])

    def _refresh_jobs(self, state: object) -> None:
        try:
            records = self._index.recent(self._num_finished)
        except HerringboneError as error:
            self.trouble = str(error)
            return
        self.trouble, self._seen = "", state
        readers = {record.name: self._reader_of(record) for record in records}
        self._readers = readers
        waiting = [reader for reader in readers.values() if not reader.started]
        for reader in waiting[: max(0, _MOST_READ - threading.active_count())]:
            reader.started = True
            threading.Thread(target=reader.follow, name=reader.name, daemon=True).start()

    def _refresh_tunings(self) -> None:
        looks = self._tunings.all()
        over = [look for look in looks if look.done][: self._num_finished]
        readers: dict[str, TuningReader] = {}
        for look in (*(look for look in looks if not look.done), *over):
            reader = TuningReader(look)
            if (known := self._tuning_readers.get(reader.row.key)) is not None:
                reader = known
                reader.take(look)
            readers[reader.row.key] = reader
        self._trials = {record.job: (look, record) for look in looks for record in look.trials}
        self._tuning_readers = readers

    def _reader_of(self, record: JobRecord) -> JobReader:
        reader = self._readers.get(record.name)
        # A name may belong to another job by now.
        if reader is None or not reader.started or reader.row.created != record.created:
            return JobReader(record, metric=self._metric, backend_named=self._backend_named)
        return reader

    def rows(self, *, now: float | None = None) -> list[Row]:
        """Return the newest row of each job and of each search, those that run first."""
        now = time.time() if now is None else now
        rows = [_with_silence(reader, now) for reader in self._readers.values() if not reader.gone]
        trials, places = self._trials, self._places
        rows = [replace(row, place=places[row.name]) if row.name in places else row for row in rows]
        rows = [trial_row(row, *trials[row.name]) if row.name in trials else row for row in rows]
        return in_order([*rows, *(reader.row for reader in self._tuning_readers.values())])

    def reader(self, key: str) -> JobReader | TuningReader | None:
        """Return the reader of a row that is shown."""
        return self._readers.get(key) or self._tuning_readers.get(key)

    def wait(self, patience: float) -> bool:
        """Wait until every job has been read once, for at most `patience` seconds; return whether all were."""
        deadline = time.monotonic() + patience
        while any(reader.started and not reader.was_read for reader in self._readers.values()):
            if time.monotonic() > deadline:
                return False
            time.sleep(_WAIT_SECONDS)
        return True

    def _follow(self) -> None:
        while True:
            self.refresh()
            time.sleep(LOOK_SECONDS)


def shown_pace(pace: Pace) -> Pace:
    """Return the pace of a view that people look at: not faster than a look a second, and as slow as the backend's.

    >>> shown_pace(Pace(0.005, 0.05, 1.02)), shown_pace(Pace(2, 10, 1.2)).longest
    (Pace(shortest=1.0, longest=1.0, slower=1.02, jitter=0.0), 10)
    """
    return replace(pace, shortest=max(LOOK_SECONDS, pace.shortest), longest=max(LOOK_SECONDS, pace.longest))


def _with_silence(reader: JobReader, now: float) -> Row:
    row, since = reader.row, reader.since
    if since is None or not row.running or now - since < _SILENT_SECONDS:
        return row
    return replace(row, trouble=f"no answer for {now - since:.0f} s")


def _state_of(path: Path) -> object:
    """Return a value that changes with every transaction on an sqlite file, and costs no query."""
    try:
        with path.open("rb") as file:
            # The file's change counter; two writes may have the same time. https://sqlite.org/fileformat.html#file_change_counter
            return path.stat().st_ino, path.stat().st_mtime_ns, file.read(28)[24:]
    except OSError:
        return None
