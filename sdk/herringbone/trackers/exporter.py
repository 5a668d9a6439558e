"""Export one job's events to one destination: read, fold into points or notices, send in batches, note the place.

    job's events --> fold.Fold         --> up to a thousand points --> Tracker.log --> Place.write
                     notices.Notices       one notice                     |  ^
                                                          transient error v  | pause, then the same batch again

Nothing is read while a batch waits, so an unreachable tracker costs no memory. The place is noted after each batch: a
process that is killed in between sends one batch again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from herringbone.events.metrics import job_metrics
from herringbone.system.polling import Pace, Pauses
from herringbone.trackers.facts import JobFacts, facts_of
from herringbone.trackers.fold import BATCH as BATCH
from herringbone.trackers.fold import Fold, Row
from herringbone.trackers.notices import Notices
from herringbone.trackers.place import ExportState, JobRemovedError, Place, this_process
from herringbone_contract.errors import ServiceError
from herringbone_contract.events.format import batches

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend, EventSource
    from herringbone.trackers.tracker import Tracker
    from herringbone_contract.events.format import Event

_Result = TypeVar("_Result")
# `TrainingJob.describe` of the job.
Describe = Callable[[], Mapping[str, Any]]
# What makes points or notices of a job's events, from the rows of an earlier export.
MakeFold = Callable[[list[Row]], "Fold | Notices"]

# After a transient error.
_RETRIES = Pace(shortest=1.0, longest=60.0, slower=2.0, jitter=0.25)
# How long a tracker may be away after the job's end: while somebody waits, and in the background.
PATIENCE_SECONDS, LIVE_PATIENCE_SECONDS = 10.0, 600.0
# Word of a job's end on Friday evening waits for a mail server that is back on Sunday.
NOTICE_PATIENCE_SECONDS = 3 * 86_400.0


class SubmittedJob:
    """A job of a backend, as an exporter sees it; each method may raise `ServiceError`.

    Raises `JobNotFoundError`, before a folder is made.
    """

    def __init__(self, name: str, backend: Backend, describe: Describe) -> None:
        self.name, self.backend = name, backend
        self._describe = describe
        record = backend.describe(name)
        self.plan, self.created = record.plan_dict, record.created
        self._source: EventSource = backend.events(name)
        self._has_metrics = False

    def over(self) -> bool:
        """Report whether the job is over."""
        record = self.backend.describe(self.name)
        # Another job has the name of the one that was removed.
        if record.created != self.created:
            raise JobRemovedError
        return record.done

    def facts(self) -> JobFacts:
        """Return what is known about the job."""
        return facts_of(self._describe(), backend=self.backend.name, created=self.created)

    def read(self) -> list[Event]:
        """Return the events since the last call, the first ones at first; [] when there are none now."""
        return self._noted(self._source.read())

    def rest(self) -> Iterator[list[Event]]:
        """Yield the remaining events of a job that is over; a service may deliver the last ones late."""
        record = self.backend.describe(self.name)
        yield from map(self._noted, self._source.rest(record.ended))
        if not self._has_metrics:
            # A job of an earlier release has no events: its metrics are in its log.
            yield list(batches(metric.point for metric in job_metrics(record, self.backend)))

    def _noted(self, events: list[Event]) -> list[Event]:
        self._has_metrics = self._has_metrics or any(event["kind"] == "metrics" for event in events)
        return events

    def close(self) -> None:
        self._source.close()


class Export(NamedTuple):
    """One export: `values` are the new ones that were sent, `total` all so far; `run` is the run's address.

    `over`: the tracker knows the end of the job. `left_out` are values of more series than a tracker can show.
    """

    destination: str
    values: int
    total: int
    run: str | None
    over: bool
    left_out: int = 0


class Exporter:
    """Exports one job to one destination.

    >>> Exporter(job, tracker, place, "mlflow:http://ml:5000/digits").run()          # doctest: +SKIP

    `fold` makes what is sent of events, and continues from the rows of an earlier export; None is that of the tracker.
    `progress` gets the number of values that were sent, after each batch; `say` gets an error that is waited out.
    """

    def __init__(
        self,
        job: SubmittedJob,
        tracker: Callable[[], Tracker],
        place: Place,
        destination: str,
        *,
        fold: MakeFold | None = None,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda _: None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._job = job
        self._open = tracker
        self._tracker: Tracker | None = None
        self._place = place
        self._state: ExportState = place.read(destination)
        rows = self._state.rows
        self._fold: Fold | Notices = Fold(destination.partition(":")[0], rows) if fold is None else fold(rows)
        self._patience = PATIENCE_SECONDS
        self._sleep = sleep
        self._say = say
        self._progress = progress
        self._following = False
        self._sent = 0

    def run(self, *, follow: bool = False, pause: float = 1.0, patience: float = PATIENCE_SECONDS) -> Export:
        """Send what the tracker does not have; return when all is sent and, with `follow`, the job is over.

        With `follow`, it looks for events every `pause` seconds, and waits for the tracker as long as the job runs.
        After the job's end it waits for the tracker `patience` seconds.

        Raises `TrackerError`, whose text is noted for `describe`.
        """
        self._following, self._patience = follow, patience
        for name, value in this_process().items():
            setattr(self._state, name, value)
        self._note("")
        try:
            self._run(pause)
        except ServiceError as error:
            self._note(str(error))
            raise
        finally:
            if self._tracker is not None:
                self._tracker.close()
        state = self._state
        return Export(
            state.destination, self._sent, state.values, state.state.get("address"), state.ended, self._fold.left_out
        )

    def _run(self, pause: float) -> None:
        if self._following:
            # The run is there from the job's start, before the first value.
            self._begin()
        while True:
            # Asked before the read: what a job wrote before its end is read after it.
            over = self._is_over()
            self._send_all(over=over)
            if over or not self._following:
                break
            self._sleep(pause)
        if over and (not self._state.ended or self._sent):
            tracker = self._begin()
            facts = self._insist(self._job.facts)
            if items := self._fold.end(facts):
                self._send(items)
            self._insist(lambda: tracker.end(facts))
            self._state.ended = True
            self._note("")

    def _is_over(self) -> bool:
        try:
            return self._job.over()
        except ServiceError as error:
            if not self._following or not error.transient:
                raise
            return False

    def _send_all(self, *, over: bool) -> None:
        points: list[Any] = []
        for events in self._rest() if over else iter(lambda: self._insist(self._job.read), []):
            for event in events:
                points += self._fold.take(event)
                # Between two events, so that the place counts whole events.
                if len(points) >= self._fold.batch:
                    self._send(points)
                    points = []
        if points:
            self._send(points)
        while not over and (items := self._fold.tick(time.time())):
            self._send(items)

    def _rest(self) -> Iterator[list[Event]]:
        rest = self._job.rest()

        def following() -> list[Event] | None:
            nonlocal rest
            try:
                return next(rest, None)
            except ServiceError:
                # An iterator that has raised an error is over; the job goes on where it ended.
                rest = self._job.rest()
                raise

        while (events := self._insist(following)) is not None:
            yield events

    def _send(self, points: Sequence[Any]) -> None:
        tracker = self._begin()
        self._insist(lambda: tracker.log(points))
        self._sent += len(points)
        self._state.values += len(points)
        self._state.rows = self._fold.rows()
        self._note("")
        self._progress(self._sent)

    def _begin(self) -> Tracker:
        if self._tracker is None:
            tracker = self._open()
            facts = self._insist(self._job.facts)
            self._insist(lambda: tracker.begin(facts, self._state.state))
            self._tracker = tracker
            self._note("")
        return self._tracker

    def _insist(self, call: Callable[[], _Result]) -> _Result:
        """Return what a call returns; repeat it after transient errors, while there is patience."""
        pauses = Pauses(_RETRIES)
        waited = 0.0
        while True:
            begin = time.monotonic()
            try:
                return call()
            except ServiceError as error:
                if not error.transient or waited >= self._patience:
                    raise
                note = f"{error}; retrying"
            if note != self._state.error:
                self._say(note)
            # Each time, to notice that the job was removed.
            self._note(note)
            pause = pauses.next()
            self._sleep(pause)
            # While the job runs, its exporter has nothing better to do.
            if not self._following or self._is_over():
                # A call may take longer than the pause after it.
                waited += max(pause, time.monotonic() - begin)

    def _note(self, error: str) -> None:
        if self._tracker is not None:
            self._state.state = dict(self._tracker.state)
        self._state.error = error
        self._place.write(self._state)
