"""One job as it is at this moment: its row, what its events have said so far, its log and its files."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.registry import backend_of_job
from herringbone.events.from_log import metric_events
from herringbone.events.kinds import decode
from herringbone.events.metrics import metrics_in_log
from herringbone.events.view import JobView
from herringbone.records.home import JobFolder
from herringbone.records.logs import FileLogs, LogLine
from herringbone.slots.places import place_texts
from herringbone.views.page import log_pages
from herringbone.views.page.data import Fineness, job_data
from herringbone.views.page.history import History
from herringbone_contract.errors import HerringboneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from herringbone.protocols.backend import Backend
    from herringbone.records.index import JobRecord

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
        # Held during a look: everything below changes only then.
        self._lock = threading.Lock()
        self._record, self._place = self._backend.describe(name), ""
        self._next_look = 0.0
        # Grows with each change of the row or the events.
        self.version = 0
        self._open()

    def _open(self) -> None:
        """Begin to read from the first event and the first line."""
        self._view, self._history = JobView(), History()
        self._source = self._backend.events(self.name)
        self._log = self._backend.logs(self.name)
        # The newest lines of a log that is not in files here.
        self._lines: deque[LogLine] = deque(maxlen=_SERVICE_LINES)
        self._has_events = self._is_drained = False
        self._opened_for = self._record.service

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
            # A service is asked at its own pace, however many pages look.
            if time.monotonic() < self._next_look:
                return self._record
            record = self._backend.describe(self.name)
            place = place_texts(self._backend.home, [record]).get(self.name, "")
            changed = (record, place) != (self._record, self._place)
            self._record, self._place = record, place
            if self._opened_for is None and record.service is not None:
                # The job was still being submitted: from now on its machines or its service have the events.
                self._close()
                self._open()
            # The row first: what a job wrote before its end is read after it.
            changed |= self._read_events()
            if not isinstance(self._log, FileLogs):
                while lines := self._log.read():
                    self._lines.extend(lines)
                self._next_look = time.monotonic() + self._backend.pace.shortest
            self.version += changed
            return record

    def _read_events(self) -> bool:
        """Take the events that have come; return whether there were any."""
        batches = iter(self._source.read, [])
        if self._record.done and not self._is_drained:
            self._is_drained = True
            # Events of machines may still have to travel. The late ones of a service come with a later look.
            if self._record.backend != "sagemaker":
                batches = itertools.chain(batches, self._source.rest(self._record.ended))
        changed = False
        for events in batches:
            changed = self._has_events = True
            for event in events:
                if (known := decode(event)) is not None:
                    self._view.add(known)
                    self._history.add(known)
        if self._record.done and not self._has_events:
            changed |= self._take_logged_metrics()
        return changed

    def data(self, fineness: Fineness | None = None) -> dict[str, Any]:
        """Return the job as its page shows it, as of the last look."""
        with self._lock:
            # The end of the job stops the clock of a page that is looked at later.
            data = job_data(
                self._record, self._view, self._history, now=time.time(), fineness=fineness, place=self._place
            )
            return data | {"version": self.version}

    def log(self, choice: log_pages.Choice, *, before: Mapping[str, int] | None = None, count: int) -> dict[str, Any]:
        """Return a page of the log; see `log_pages.newest_lines`."""
        if (files := self._log_files()) is not None:
            return log_pages.newest_lines(files, choice, before=before, count=count, over=self._record.done)
        with self._lock:
            return log_pages.page_of(list(self._lines), choice, count)

    def later_log(self, choice: log_pages.Choice, after: Mapping[str, int]) -> dict[str, Any]:
        """Return the log's lines since the offsets `after`; see `log_pages.later_lines`."""
        return log_pages.later_lines(self._log_files() or {}, choice, after=after)

    def log_sizes(self) -> dict[str, int]:
        """Return the size of each host's log, which tells whether there is more of it."""
        return log_pages.sizes(self._log_files() or {})

    def close(self) -> None:
        """Close files and connections."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._source.close()
        self._log.close()

    def _log_files(self) -> dict[str, Path] | None:
        if isinstance(self._log, FileLogs):
            return {path.stem: path for path in self._log.paths}
        # What is read of the log of an SSH job that runs is also stored here.
        hosts = [host["name"] for host in self._record.plan_dict.get("hosts", ())]
        files = {host: self.folder.log(host) for host in hosts}
        return files if any(path.exists() for path in files.values()) else None

    def _take_logged_metrics(self) -> bool:
        """Take the metrics of a job of an earlier release from its log, which has no events."""
        self._has_events = True
        with suppress(HerringboneError), closing(self._backend.logs(self.name)) as source:
            self._view.take_all(metric_events(metrics_in_log(self._record, source)))
        return bool(self._view.series)
