"""One job as it is at this moment: its row, what its events have said so far, its log and its files."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.registry import backend_of_job
from herringbone.events.from_log import metric_events
from herringbone.events.metrics import metrics_in_log
from herringbone.events.view import JobView
from herringbone.jobs.home import JobFolder
from herringbone.jobs.logs import FileLogs, LogLine, without_events
from herringbone.page import log_pages
from herringbone.page.data import Fineness, job_data
from herringbone.page.history import History
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from herringbone.backends.base import Backend
    from herringbone.jobs.index import JobRecord

# Logs of services come over the network; a page shows their end.
_SERVICE_LINES = 2_000


class LiveJob:
    """A job that is looked at again and again: each look reads only the events that have come since the last one.

    >>> job = LiveJob("digits-1")                                    # doctest: +SKIP
    >>> job.data()["status"]                                         # doctest: +SKIP
    'InProgress'

    Several threads may look. Raises `JobNotFoundError` for a job that is not known.
    """

    def __init__(self, name: str, backend: Backend | None = None) -> None:
        self.name = name
        self._backend = backend_of_job(name) if backend is None else backend
        # Held while events are read: `_view`, `_history` and `_source` change only then.
        self._lock = threading.Lock()
        self._view = JobView()
        self._history = History()
        self._source = self._backend.events(name)
        self._record = self._backend.describe(name)
        self._has_events = False
        # Grows with each change of the row or the events.
        self.version = 0

    @property
    def folder(self) -> JobFolder:
        """The job's folder on this machine."""
        return self._backend.home.job(self.name)

    @property
    def over(self) -> bool:
        """True once the job was over at a look: nothing of it changes any more."""
        return self._record.done

    def look(self) -> JobRecord:
        """Read what has come since the last look, and return the job's row."""
        with self._lock:
            # The row first: what a job wrote before its end is read after it.
            record = self._backend.describe(self.name)
            changed = record != self._record
            self._record = record
            while events := self._source.read():
                changed = self._has_events = True
                for event in events:
                    self._view.take(event)
                    self._history.take(event)
            if record.done and not self._has_events and not self._view.series:
                changed |= self._take_logged_metrics()
            self.version += changed
            return record

    def data(self, fineness: Fineness | None = None) -> dict[str, Any]:
        """Return the job as its page shows it, as of the last look."""
        with self._lock:
            # The end of the job stops the clock of a page that is looked at later.
            return job_data(self._record, self._view, self._history, now=time.time(), fineness=fineness) | {
                "version": self.version
            }

    def log(self, choice: log_pages.Choice, *, before: Mapping[str, int] | None = None, count: int) -> dict[str, Any]:
        """Return a page of the log; see `log_pages.newest_lines`."""
        if (files := self._log_files()) is not None:
            return log_pages.newest_lines(files, choice, before=before, count=count, over=self._record.done)
        with closing(self._backend.logs(self.name)) as source:
            lines: list[LogLine] = []
            while batch := source.read():
                lines = [*lines, *without_events(batch)][-_SERVICE_LINES:]
        return log_pages.page_of(lines, choice, count)

    def later_log(self, choice: log_pages.Choice, after: Mapping[str, int]) -> dict[str, Any]:
        """Return the log's lines since the offsets `after`; see `log_pages.later_lines`."""
        return log_pages.later_lines(self._log_files() or {}, choice, after=after)

    def log_sizes(self) -> dict[str, int]:
        """Return the size of each host's log, which tells whether there is more of it."""
        return log_pages.sizes(self._log_files() or {})

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._source.close()

    def _log_files(self) -> dict[str, Path] | None:
        with closing(self._backend.logs(self.name)) as source:
            if isinstance(source, FileLogs):
                return {path.stem: path for path in source.paths}
        # An SSH job that runs: another process may be fetching its logs into the same files.
        hosts = [host["name"] for host in self._record.plan_dict.get("hosts", ())]
        files = {host: self.folder.log(host) for host in hosts}
        return files if any(path.exists() for path in files.values()) else None

    def _take_logged_metrics(self) -> bool:
        """Take the metrics of a job of an earlier release from its log, which has no events."""
        self._has_events = True
        with suppress(HerringboneError), closing(self._backend.logs(self.name)) as source:
            self._view.take_all(metric_events(metrics_in_log(self._record, source)))
        return bool(self._view.series)
