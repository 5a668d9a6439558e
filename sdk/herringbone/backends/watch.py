"""Waits for a job: asks for its state and its log, at the backend's pace, until the job is over.

An error of the service does not end the wait. It is reported once, and the questions continue:

    error of the service     the job's state               the job's log
    transient                ask again                     ask again
    denied                   ask again for a while         ask again for a while, then go on without the log
    any other                raise                         go on without the log
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from herringbone.records.standstill import standstill
from herringbone.system.polling import Pauses
from herringbone_contract.errors import ServiceError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend, LogSource
    from herringbone.records.index import JobRecord
    from herringbone.records.logs import LogLine

# A new role's permissions and a new job's tags take minutes until all of a cloud knows them.
ACCESS_PATIENCE_SECONDS = 300.0


class Watch:
    """One wait for one job; `say` gets messages for the user, `look` gets each row that was read.

    >>> for lines in Watch(backend, "digits-1", say=print).batches(source): ...       # doctest: +SKIP
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        *,
        say: Callable[[str], None],
        look: Callable[[JobRecord], None] | None = None,
        access_patience: float = ACCESS_PATIENCE_SECONDS,
    ) -> None:
        self._backend = backend
        self._name = name
        self._say = say
        self._look = look
        self._access_patience = access_patience
        self._record: JobRecord | None = None
        # Errors that were reported and not yet followed by an answer, one of each type.
        self._open_errors: dict[type[ServiceError], ServiceError] = {}
        self._denied_since: dict[str, float] = {}
        self._log_fails = False
        self._log_is_lost = False
        self._standstill: str | None = None

    def batches(self, source: LogSource | None, timeout: float | None = None) -> Iterator[list[LogLine]]:
        """Yield the log until the job is over, and [] whenever there is no more for now; without a source, only wait.

        Raises `TimeoutError` after `timeout` seconds, and the backend's error for a job that it never knew.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pauses = Pauses(self._backend.pace)
        while True:
            # State first, log second: in the other order, lines between the two reads would be lost at the end.
            answered, over = self._ask(log_is_shown=source is not None), self._record is not None and self._record.done
            if over:
                if source is not None:
                    yield from self._rest(source)
                return
            while lines := self._read(source):
                pauses.reset()
                yield lines
            yield []
            if answered and self._open_errors and not self._log_fails:
                service = next(iter(self._open_errors.values())).service
                self._say(f"{service} answers again: job {self._name}")
                self._open_errors.clear()
            if deadline is not None and time.monotonic() > deadline:
                status = self._record.status if self._record is not None else "unknown"
                raise TimeoutError(f"job {self._name} is still {status} after {timeout} s; it goes on")
            time.sleep(pauses.next())

    def _ask(self, *, log_is_shown: bool) -> bool:
        """Read the job's row; return whether that succeeded."""
        try:
            self._record = self._backend.describe(self._name)
        except ServiceError as error:
            # At the first question a transient error is raised: the user is still there and can act on it.
            patient = self._record is not None if error.transient else error.denied
            if not patient or (error.denied and self._denied_too_long("job")):
                raise
            self._report(error)
            return False
        self._denied_since.pop("job", None)
        if self._look is not None:
            self._look(self._record)
        before = self._standstill
        self._standstill = standstill(self._record, self._backend.home, log_is_shown=log_is_shown)
        if self._standstill is not None and self._standstill != before:
            self._say(self._standstill)
        return True

    def _read(self, source: LogSource | None) -> list[LogLine]:
        self._log_fails = False
        if source is None or self._log_is_lost:
            return []
        try:
            lines = source.read()
        # An error of the log never ends the wait: the job itself can still be followed.
        except ServiceError as error:
            if error.transient:
                self._log_fails = True
                self._report(error)
            elif not error.denied or self._denied_too_long("log"):
                self._lose_log(error)
            return []
        self._denied_since.pop("log", None)
        return lines

    def _rest(self, source: LogSource) -> Iterator[list[LogLine]]:
        """Yield the remaining lines of a job that is over; transient errors are waited out for a while."""
        assert self._record is not None
        patience = time.monotonic() + self._access_patience
        while not self._log_is_lost:
            try:
                yield from source.rest(self._record.ended)
                return
            except ServiceError as error:
                if not error.transient or time.monotonic() > patience:
                    self._lose_log(error)
                    return
                self._report(error)
            # The job is over, so there is no reason to ask often.
            time.sleep(self._backend.pace.longest)

    def _denied_too_long(self, question: str) -> bool:
        now = time.monotonic()
        return now - self._denied_since.setdefault(question, now) >= self._access_patience

    def _report(self, error: ServiceError) -> None:
        if type(error) not in self._open_errors:
            self._open_errors[type(error)] = error
            self._say(f"{error}. The wait for job {self._name} goes on")

    def _lose_log(self, error: ServiceError) -> None:
        self._log_is_lost = True
        self._say(f"{error}. Job {self._name} is followed without its log")
