"""What every backend can do: the verbs between a plan and a job that is over.

How to add one: docs/adding-a-backend.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from herringbone.jobs.index import JobRecord
    from herringbone.jobs.interrupt import OnInterrupt
    from herringbone.jobs.logs import LogLine
    from herringbone.jobs.polling import Pace
    from herringbone.planning.plan import JobPlan


class LogSource(Protocol):
    """The log of one job, read on from where the last read ended."""

    def read(self) -> list[LogLine]:
        """Return the lines that came since the last call, each host's in order; [] when there are none yet."""

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:
        """Yield what is left of the log of a job that is over; `ended` is when, in seconds since 1970.

        A service may give the last lines late, and is waited for.
        """

    def close(self) -> None:
        """Let go of files and connections."""


class Backend(Protocol):
    """Runs jobs of the instance types that `herringbone.backends` gives it.

    `pace` is how often one who waits asks for a job and its log, `on_interrupt` what his Ctrl-C does unless he says.
    """

    name: str
    pace: Pace
    on_interrupt: OnInterrupt

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        """Return the given options that mean nothing here.

        Looks, changes nothing. Raises `UnsupportedError` for what would be unsafe to ignore, `InputError` for files
        that are not there.
        """

    def request(self, plan: JobPlan) -> dict[str, Any] | None:
        """Return what the service would be sent, `${...}` for what only the account can tell; None without a service.

        Looks at nothing but the plan and files that it names.
        """

    def submit(self, plan: JobPlan) -> None:
        """Start the job and return without waiting; on an error nothing is left behind."""

    def describe(self, name: str) -> JobRecord:
        """Return the job's row: true at this moment, or, where a service has to be asked, within its pace."""

    def logs(self, name: str) -> LogSource:
        """Return the job's log from its first line."""

    def stop(self, name: str, grace: float | None = None) -> None:
        """Ask the job to stop and return; `grace` is seconds until it is killed.

        Nothing happens to a job that is over.
        """

    def kill(self, name: str) -> None:
        """End the job as soon as can be; return when nothing of it runs here."""

    def bill(self, name: str) -> str | None:
        """Say what a job that is over has cost; None where nobody is billed."""

    def fetch_model(self, name: str, into: Path) -> Path:
        """Return the packed model, an archive or a folder: where it lies, or brought into the folder `into`.

        Raises `InputError` while there is none.
        """
