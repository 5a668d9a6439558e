"""Waits for a job: asks for its state and its log, at the backend's pace, until it is over.

What a service fails to answer does not end the wait: it is said once, and the questions go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from herringbone.jobs.polling import Pauses
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError

if TYPE_CHECKING:
    from herringbone.backends.base import Backend, LogSource
    from herringbone.jobs.index import JobRecord
    from herringbone.jobs.logs import LogLine

# What goes away by itself, or when the user logs in again.
_PASSING = (AwsUnavailableError, AwsCredentialsError)
# A new role's permissions and a new job's tags take minutes until all of AWS knows them.
ACCESS_PATIENCE_SECONDS = 300.0


class Watch:
    """One wait for one job; `say` gets what the user should know, `look` each row that was read.

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
        self._troubles: set[type[AwsError]] = set()
        self._denied_since: dict[str, float] = {}
        self._log_fails = False
        self._log_is_lost = False

    def batches(self, source: LogSource | None, timeout: float | None = None) -> Iterator[list[LogLine]]:
        """Yield the log until the job is over; without a source only the job is waited for.

        Raises `TimeoutError` after `timeout` seconds, and what the backend raises for a job that it never knew.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pauses = Pauses(self._backend.pace)
        while True:
            # The state is read before the log, so that no last line is missed.
            well, over = self._ask(), self._record is not None and self._record.done
            if over:
                if source is not None:
                    yield from self._rest(source)
                return
            while lines := self._read(source):
                pauses.news()
                yield lines
            if well and self._troubles and not self._log_fails:
                self._say(f"AWS answers again: job {self._name}")
                self._troubles.clear()
            if deadline is not None and time.monotonic() > deadline:
                status = self._record.status if self._record is not None else "unknown"
                raise TimeoutError(f"job {self._name} is still {status} after {timeout} s; it goes on")
            time.sleep(pauses.next())

    def _ask(self) -> bool:
        """Read the job's row; say whether that succeeded."""
        try:
            self._record = self._backend.describe(self._name)
        except _PASSING as error:
            if self._record is None:
                raise
            self._trouble(error)
            return False
        except AwsAccessError as error:
            if self._denied_too_long("job"):
                raise
            self._trouble(error)
            return False
        self._denied_since.pop("job", None)
        if self._look is not None:
            self._look(self._record)
        return True

    def _read(self, source: LogSource | None) -> list[LogLine]:
        self._log_fails = False
        if source is None or self._log_is_lost:
            return []
        try:
            lines = source.read()
        except _PASSING as error:
            self._log_fails = True
            self._trouble(error)
            return []
        except AwsAccessError as error:
            if self._denied_too_long("log"):
                self._lose_log(error)
            return []
        except AwsError as error:
            self._lose_log(error)
            return []
        self._denied_since.pop("log", None)
        return lines

    def _rest(self, source: LogSource) -> Iterator[list[LogLine]]:
        assert self._record is not None
        patience = time.monotonic() + self._access_patience
        while not self._log_is_lost:
            try:
                yield from source.rest(self._record.ended)
                return
            except AwsError as error:
                if not isinstance(error, _PASSING) or time.monotonic() > patience:
                    self._lose_log(error)
                    return
                self._trouble(error)
            time.sleep(self._backend.pace.longest)

    def _denied_too_long(self, what: str) -> bool:
        now = time.monotonic()
        return now - self._denied_since.setdefault(what, now) >= self._access_patience

    def _trouble(self, error: AwsError) -> None:
        if type(error) not in self._troubles:
            self._troubles.add(type(error))
            self._say(f"{error}. The wait for job {self._name} goes on")

    def _lose_log(self, error: AwsError) -> None:
        self._log_is_lost = True
        self._say(f"{error}. Job {self._name} is followed without its log")
