"""Follow a job as `fit` and `run` do: show its states, its log and its end, and handle Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from herringbone.api.ends import end_line, kept_checkpoints
from herringbone.backends.watch import Watch
from herringbone.records.description import address, failure_of
from herringbone.records.index import PENDING, RESTARTING
from herringbone.records.logs import LogLine, check_pattern, last_lines, select_lines
from herringbone.records.remedies import remedy
from herringbone.records.state_lines import StateEvents, why_stopped
from herringbone.show.console import Console
from herringbone.slots.places import PlaceLines, waits_in_line
from herringbone.system.interrupt import OnInterrupt, stops, ways_back
from herringbone_contract.errors import JobFailedError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend, LogSource
    from herringbone.records.index import JobRecord
    from herringbone_contract.events.format import Event

# Time between two looks at a running job's events, which arrive once a second.
_EVENT_SECONDS = 0.5


class Follower:
    """Shows one job until its end: `Follower(name, backend, Console()).follow(None)`.

    Without a console the log is not read at all: parsing a million lines costs seconds.
    """

    def __init__(self, name: str, backend: Backend, console: Console | None) -> None:
        self._name, self._backend, self._console = name, backend, console
        self._stderr = Console(sys.stderr)

    def follow(self, on_interrupt: OnInterrupt | None) -> None:
        """See `TrainingJob.follow`."""
        # Ctrl-C may arrive while the log is opened, so `source` may still be None below.
        source = None
        try:
            source = self._backend.logs(self._name)
            self.wait(source)
        except KeyboardInterrupt:
            # The interrupt itself still reaches the caller, whatever happens to the job.
            self._interrupted(source, on_interrupt or self._backend.on_interrupt)
            self._say_end()
            raise
        finally:
            if source is not None:
                source.close()
            if self._console is not None:
                self._console.close()
        record = self._backend.describe(self._name)
        if self._console is not None and (bill := self._backend.bill(self._name)):
            self._console.note(bill, self._stderr)
        raise_failure(record, log_shown=self._console is not None and self._console.shows_log)
        if self._console is not None and (why := why_stopped(record)):
            self._console.note(why, self._stderr)
        self._say_end()

    def wait(self, source: LogSource, timeout: float | None = None) -> None:
        """Wait until the job is over, and show its states and its log meanwhile."""
        console = self._console
        if console is None:
            for _ in Watch(self._backend, self._name, say=self._stderr.say).batches(None, timeout):
                pass
            return
        events, places = StateEvents(), PlaceLines(self._backend.home)

        def say(line: str) -> None:
            console.note(line, self._stderr)

        def look(record: JobRecord) -> None:
            console.look(record)
            now = time.monotonic()
            # The place says more than the state Pending does.
            for line in places.of(record, now=now) if waits_in_line(record) else events.of(record, now=now):
                say(line)

        for lines in Watch(self._backend, self._name, say=say, look=look).batches(source, timeout):
            console.show(lines)

    def _say_end(self) -> None:
        """Write the last line of a job that is over: how it ended, and where its results are."""
        if self._console is None or not (record := self._backend.describe(self._name)).done:
            return
        end = record.ended or time.time()
        seconds = 0.0 if record.started is None else end - record.started
        line = end_line(record, seconds=seconds, model=address(record.model), checkpoints=kept_checkpoints(record))
        if line is not None:
            self._console.say(line)

    def _interrupted(self, source: LogSource | None, choice: OnInterrupt) -> None:
        if self._console is not None:
            self._console.settle()
        if not stops(choice, self._name):
            self._stderr.say(ways_back(self._name))
            return
        try:
            self._stderr.say(f"stopping job {self._name}; Ctrl-C again kills it")
            self._backend.stop(self._name)
            self.wait(source or self._backend.logs(self._name))
        # The user pressed Ctrl-C again during the grace.
        except KeyboardInterrupt:
            self._backend.kill(self._name)
            record = self._backend.describe(self._name)
            if not record.done:
                self._stderr.say(f"job {self._name} is {record.status}: the service ends it when its grace is over")
            elif why := why_stopped(record):
                self._stderr.say(why)


def read_log(
    backend: Backend, name: str, *, follow: bool, tail: int | None, pattern: str | None, **choice: Any
) -> Iterator[LogLine]:
    """Return the lines of a job's log that `choice` selects; see `TrainingJob.logs`."""
    if pattern is not None:
        check_pattern(pattern)
    return _lines(backend, name, follow=follow, tail=tail, pattern=pattern, **choice)


def _lines(backend: Backend, name: str, *, follow: bool, tail: int | None, **choice: Any) -> Iterator[LogLine]:
    # A generator that the caller abandons is closed by Python, and then closes the files as well.
    with closing(backend.logs(name)) as source:
        if follow:
            batches = _followed(backend, name, source)
        elif (record := backend.describe(name)).done:
            batches = source.rest(record.ended)
        else:
            batches = iter(source.read, [])
        # An empty batch ends the lines that exist by now, and a batch whose lines were all left out does not.
        chosen = ((lines, list(select_lines(lines, **choice))) for lines in batches)
        if tail is None:
            batches = (kept for _, kept in chosen)
        else:
            batches = last_lines((kept for lines, kept in chosen if kept or not lines), tail)
        for lines in batches:
            yield from lines


def _followed(backend: Backend, name: str, source: LogSource) -> Iterator[list[LogLine]]:
    """Follow a log; a job that writes none because it waits says for what, on standard error."""
    say, events = Console(sys.stderr).say, StateEvents()

    def look(record: JobRecord) -> None:
        for line in events.of(record, now=time.monotonic()):
            if record.secondary_status in (PENDING, RESTARTING):
                say(line)

    return Watch(backend, name, say=say, look=look).batches(source)


def read_events(backend: Backend, name: str, *, follow: bool) -> Iterator[Event]:
    """Yield a job's events; see `TrainingJob.events`."""
    with closing(backend.events(name)) as source:
        while True:
            # Asked before the read: what a job wrote before its end is read after it.
            record = backend.describe(name)
            for events in source.rest(record.ended) if record.done else iter(source.read, []):
                yield from events
            if record.done or not follow:
                return
            time.sleep(_EVENT_SECONDS)


def raise_failure(record: JobRecord, *, log_shown: bool = False) -> None:
    """Raise `JobFailedError` if the job failed; the message is short where its log was shown."""
    if (failure := failure_of(record)) is not None:
        raise JobFailedError(record.name, failure, advice=remedy(failure, record.plan_dict), log_shown=log_shown)
