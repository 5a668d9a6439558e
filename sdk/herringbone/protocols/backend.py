"""The protocol of a backend: the verbs between a plan and a job that is over.

`docs/contribute/adding-a-backend.md` describes how to add a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.host_access import HostAccess
    from herringbone.records.download import Part
    from herringbone.records.home import Home
    from herringbone.records.index import JobRecord
    from herringbone.records.logs import LogLine
    from herringbone.system.interrupt import OnInterrupt
    from herringbone.system.polling import Pace
    from herringbone_contract.events.format import Event
    from herringbone_contract.events.requests import Request


class LogSource(Protocol):
    """The log of one job; each read continues where the last one ended."""

    def read(self) -> list[LogLine]:
        """Return the lines that arrived since the last call, each host's in order; [] when there are none yet."""

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:
        """Yield the remaining lines of a job that is over; `ended` is its end, in seconds since 1970.

        A service may deliver the last lines late; this waits for them.
        """

    def close(self) -> None:
        """Close files and connections."""


class EventSource(Protocol):
    """The events of one job; each read continues where the last one ended."""

    def read(self) -> list[Event]:
        """Return the next events, by time; [] when there are no more for now.

        The events of a long job come in several parts, which fit in memory: read until there are no more.
        """

    def rest(self, ended: float | None) -> Iterator[list[Event]]:
        """Yield the remaining events of a job that is over; `ended` is its end, in seconds since 1970.

        A service may deliver the last ones late; this waits for them.
        """

    def close(self) -> None:
        """Close files and connections."""


class Answers(Protocol):
    """The events of a job's hosts that have come since a request was sent."""

    def read(self) -> list[Event]:
        """Return what has arrived since the last call, without waiting."""

    def close(self) -> None:
        """Close files and connections."""


class Backend(Protocol):
    """Runs jobs of the instance types that `herringbone.backends.registry` assigns to it.

    `home` has the rows of its jobs, and their folders if the jobs have any on this machine. `pace` says how often a
    waiting caller asks for a job and its log. `on_interrupt` says what Ctrl-C does unless the user chooses.
    """

    name: str
    pace: Pace
    on_interrupt: OnInterrupt

    @property
    def home(self) -> Home:
        """The folder of jobs on this machine."""

    def completed(self, plan: JobPlan) -> JobPlan:
        """Return the plan with what this backend chooses where the user left it open. Raises `UsageError`."""

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        """Return the options of the plan that have no effect on this backend. Changes nothing.

        Raises `UnsupportedError` for options that are unsafe to ignore, `InputError` for files that are missing.
        """

    def request(self, plan: JobPlan) -> dict[str, Any] | None:
        """Return the request to the service, with `${...}` for values of the account; None without a service.

        Reads nothing but the plan and the files that it names.
        """

    def try_out(self, plan: JobPlan) -> None:
        """Have the service try the request without creating anything. Raises its error for a request that it refuses.

        Raises `UnsupportedError` where no service can try one.
        """

    def submit(self, plan: JobPlan) -> None:
        """Start the job and return without waiting; after an error nothing is left behind."""

    def find(self, name: str, session: object = None) -> None:
        """Look a job up, so that the other verbs know it; `session` are the credentials to ask a service with.

        Raises `JobNotFoundError` when neither the index nor the service has the job, `OptionError` for a session that
        this backend cannot use.
        """

    def describe(self, name: str) -> JobRecord:
        """Return the job's row: true at this moment, or at most one `pace.shortest` old when a service is asked."""

    def logs(self, name: str) -> LogSource:
        """Return the job's log from its first line."""

    def events(self, name: str) -> EventSource:
        """Return the job's events from its first one."""

    def ask(self, name: str, request: Request) -> Answers:
        """Send a request to the supervisors of a running job, and return the source of the events that follow.

        Callers use `herringbone.access.requests.ask`, which waits. Raises `RequestError` when the request cannot reach
        them now, `UnsupportedError` where it never can.
        """

    def access(self, name: str, host: str) -> HostAccess:
        """Return the way into a host of a running job, for a shell or a debugger.

        Callers use `herringbone.access.requests.way_into`. Raises `RequestError` when the host does not run,
        `UnsupportedError` where nobody gets in.
        """

    def stop(self, name: str, grace: float | None = None) -> None:
        """Ask the job to stop and return; the job is killed after `grace` seconds.

        A job that is over does not change.
        """

    def kill(self, name: str) -> None:
        """End the job as soon as possible; return when nothing of it runs on this machine."""

    def cost(self, record: JobRecord) -> float | None:
        """Return the dollars of a job so far, by its whole row, without asking anybody; None without a known price."""

    def bill(self, name: str) -> str | None:
        """Return the cost of a job that is over, in words; None when nobody is billed."""

    def forget(self, record: JobRecord) -> str:
        """Remove what a job that is over has left on other machines; return what stays there, and its remedy, or "".

        Nothing on this machine changes.
        """

    def repack(self, name: str, say: Callable[[str], None]) -> Path:
        """Pack the model of a job that is over and has no archive; `say` gets messages about files.

        Raises `InputError` when there is nothing to pack, `UnsupportedError` where a service packs models.
        """

    def output_of(self, record: JobRecord) -> str | None:
        """Return the path or address of the packed output of a job, None while there is none."""

    def fetch(self, name: str, part: Part, into: Path) -> Path:
        """Return the model, the output or the checkpoints of a job: an archive or a folder, or a copy in `into`.

        The logs are read by `logs`. Raises `InputError` while there is nothing of the part.
        """
