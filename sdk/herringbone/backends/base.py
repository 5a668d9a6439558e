"""What every backend can do: the verbs between a plan and a job that is over.

How to add one: docs/adding-a-backend.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from herringbone.jobs import JobRecord
    from herringbone.logs import LogLine
    from herringbone.plan import JobPlan


class LogSource(Protocol):
    """The log of one job, read on from where the last read ended."""

    def read(self) -> list[LogLine]:
        """Return the lines that came since the last call, each host's in order; [] when there are none yet."""

    def close(self) -> None:
        """Let go of files and connections."""


class Backend(Protocol):
    """Runs jobs of the instance types that `herringbone.backends` gives it."""

    name: str

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        """Return the given options that mean nothing here.

        Looks, changes nothing. Raises `UnsupportedError` for what would be unsafe to ignore, `InputError` for files
        that are not there.
        """

    def request(self, plan: JobPlan) -> dict[str, Any] | None:
        """Return what the service would be sent, `${...}` for what only the account can tell; None without a service.

        Looks at nothing but the plan.
        """

    def submit(self, plan: JobPlan) -> None:
        """Start the job and return without waiting; on an error nothing is left behind."""

    def describe(self, name: str) -> JobRecord:
        """Return the job's row, true at this moment."""

    def logs(self, name: str) -> LogSource:
        """Return the job's log from its first line."""

    def stop(self, name: str, grace: float | None = None) -> None:
        """Ask the job to stop and return; `grace` is seconds until it is killed.

        Nothing happens to a job that is over.
        """

    def kill(self, name: str) -> None:
        """End the job now, without grace; return when nothing of it runs."""
