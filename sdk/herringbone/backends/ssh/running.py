"""Jobs that run on machines: follow, ask, stop and finish them, from any process that finds their row."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from herringbone.backends import lifecycle
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.shown_logs import ShownLogs
from herringbone.backends.ssh.attempts.current import CurrentAttempt, current_attempt
from herringbone.backends.ssh.finish.completion import as_over, end_packing, start_completion
from herringbone.backends.ssh.finish.observed import ObservedHosts
from herringbone.backends.ssh.finish.retry import RestartableHosts
from herringbone.backends.ssh.follow.files import EVENTS, LOG, RemoteEvents, RemoteFiles, RemoteLogs
from herringbone.backends.ssh.follow.monitor import FIRST_LOOK_SECONDS, JobMonitor
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.start.claims import Granted
from herringbone.backends.ssh.start.submission import NextAttempt, Submission
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone.plan.plan import parse_plan
from herringbone.records.home import Home
from herringbone.records.index import PENDING, STOPPING, UPLOADING, JobRecord
from herringbone.s3.staging import local_plan
from herringbone.slots.pending import signal_waiter, waiter_died
from herringbone.system.polling import Pace
from herringbone_contract.errors import HostError, LaunchError, RequestError
from herringbone_contract.events.requests import is_for

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Answers, EventSource, LogSource
    from herringbone.protocols.host_access import HostAccess
    from herringbone_contract.events.requests import Request

# The machines push what is new, and a look at a connection without news takes a tenth of a millisecond.
_PACE = Pace(shortest=0.01, longest=0.1, slower=1.05)
KILL_SECONDS = 15.0
_POLL_SECONDS = 0.02


class RunningJobs(OwnHostsBackend):
    """The verbs about jobs that have been submitted; `transport` reaches the machines that their rows name.

    A `kill` waits `kill_seconds` for the job's end.
    """

    pace = _PACE

    def __init__(self, home: Home, transport: Transport[Machine], *, kill_seconds: float = KILL_SECONDS) -> None:
        super().__init__(home)
        self._transport, self._kill_seconds = transport, kill_seconds
        # By job: the monitor of its current attempt, with open connections.
        self._monitors: dict[str, JobMonitor] = {}
        # By the job's name on machines, which differs for each attempt.
        self._completions: dict[str, Thread] = {}
        self._ending: dict[str, RestartableHosts] = {}
        # Open logs per job; the last one that is closed closes the job's connections.
        self._readers: Counter[str] = Counter()
        # Jobs that the user has named to this backend, which looks at others for a list.
        self._named: set[str] = set()
        # Plans with their secrets, of the jobs that this Python submitted; the index has them masked.
        self._plans: dict[str, JobPlan] = {}

    def _submission(
        self, plan: JobPlan, *, next_attempt: NextAttempt | None = None, granted: Granted | None = None
    ) -> Submission:
        """Return the submission of a plan, or of its next attempt."""
        raise NotImplementedError

    @property
    def transport(self) -> Transport[Machine]:
        return self._transport

    def find(self, name: str, session: object = None) -> None:
        super().find(name, session)
        self._named.add(name)

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done:
            return record
        if record.service is None:
            return self._being_submitted(record)
        if self._is_undecided(record):
            return record
        is_first = name not in self._monitors
        monitor = self._monitor_of(record)
        if monitor.job not in self._completions:
            (monitor.first_look if is_first else monitor.look)()
            if monitor.is_over and current_attempt(record).code_path is None and name not in self._named:
                # Lists fetch no results of jobs that others submitted: those may be many.
                return as_over(record, monitor.states)
            if monitor.is_over:
                # The completion has a thread of its own; the row says when it is finished.
                completion = self._completions[monitor.job] = self._complete(record, monitor)
                monitor.close()
                if is_first:
                    completion.join(FIRST_LOOK_SECONDS)
        return self._index.get(name)

    def logs(self, name: str) -> LogSource:
        # Over: the files on this machine are all there is.
        if self._index.get(name).done:
            return super().logs(name)
        return ShownLogs(RemoteLogs(self._files(name, (LOG,)), close=lambda: self._release_reader(name)))

    def events(self, name: str) -> EventSource:
        if self._index.get(name).done:
            return super().events(name)
        here = self._home.job(name).job_events
        return RemoteEvents(self._files(name, EVENTS), here, close=lambda: self._release_reader(name))

    def _files(self, name: str, endings: Sequence[str]) -> RemoteFiles:
        self._readers[name] += 1
        return RemoteFiles(lambda: self._follow_current(name), self._home.job(name).logs, endings)

    def repack(self, name: str, say: Callable[[str], None]) -> Path:
        record = self._index.get(name)
        if record.done and record.model is None and record.service and not self._home.job(name).fetched.exists():
            self._fetch_again(record)
            say("fetched what the machines have of the job")
        return super().repack(name, say)

    def _fetch_again(self, record: JobRecord) -> None:
        """Fetch the results of a job whose completion could not. Raises `HostError` for each machine without."""
        monitor = JobMonitor(current_attempt(record).name, current_attempt(record).machines, self._transport)
        try:
            monitor.first_look()
            states = monitor.states
            silent = [f"{host.machine.name}: {host.trouble or 'no answer'}" for host in monitor.hosts.values()]
        finally:
            monitor.close()
        missing = [why for state, why in zip(states, silent, strict=True) if not state.done]
        RestartableHosts(
            record, parse_plan(record.plan_dict), states, self._transport, self._home, self._submission
        ).fetch_results()
        if missing:
            folder = self._home.job(record.name).path
            raise HostError(
                f"job {record.name}: {'; '.join(missing)}: what these machines have of it is missing; run `herringbone "
                f"repack {record.name}` again once they answer. What other machines left is in {folder}/hosts"
            )

    def ask(self, name: str, request: Request) -> Answers:
        # Imported here: only clients that look into a running job need it.
        from herringbone.backends.ssh.follow.access import MachineAnswers

        attempt = self._attempt(name)
        machines = {host: machine for host, machine in attempt.machines.items() if is_for(request, host)}
        return MachineAnswers(attempt.name, machines, self._transport, request)

    def access(self, name: str, host: str) -> HostAccess:
        # Imported here: only a shell and a debugger need it.
        from herringbone.backends.ssh.follow.access import MachineWays
        from herringbone.protocols.host_access import CommandAccess

        attempt = self._attempt(name)
        if host not in attempt.machines:
            raise RequestError(f"job {name}: {host} does not run in this attempt")
        machine = attempt.machines[host]
        with self._transport.connect(machine) as connection:
            place = connection.ask({"ask": "place"})
        return CommandAccess(MachineWays(self._transport, machine, attempt.name, host, place))

    def _attempt(self, name: str) -> CurrentAttempt:
        record = self._index.get(name)
        if record.service is None:
            raise RequestError(f"job {name} is still being submitted; ask it once its hosts run")
        return current_attempt(record)

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self._index.get(name)
        if record.done or record.service is None:
            self._leave_line(record)
            return
        if record.secondary_status == UPLOADING:
            # Training is over on all machines. As on the other backends, only a second request ends the packing.
            if record.status == STOPPING:
                end_packing(self._index, name)
            lifecycle.settle(self._index, name, {"status": STOPPING})
            return
        # The row first: a retry that starts at this moment sees it, and stops the new attempt.
        lifecycle.change_state(self._index, name, {"status": STOPPING, "secondary_status": STOPPING})
        self._ask_all(record, {"ask": "stop", "grace": grace})

    def kill(self, name: str) -> None:
        record = self._index.get(name)
        if record.done:
            return
        if record.service is None:
            self._leave_line(record)
        elif record.secondary_status == UPLOADING:
            end_packing(self._index, name)
        else:
            self._ask_all(record, {"ask": "kill"})
        lifecycle.poll_until_done(self.describe, name, seconds=self._kill_seconds, pause=_POLL_SECONDS)

    def _ask_all(self, record: JobRecord, message: dict[str, Any]) -> None:
        """Send every machine of a job a request, over new connections.

        Raises `HostError` when no machine has answered.
        """
        attempt = current_attempt(record)
        # Machines that retry the job by themselves may run another attempt by now, on any of them.
        machines = attempt.members or attempt.machines
        # New connections: those of the monitor may be broken at this moment.
        answers = ask_each(self._transport, machines.values(), {**message, "job": attempt.name})
        errors = [answer for answer in answers if isinstance(answer, HostError)]
        # One host that hears of it is enough: its supervisor, or its keeper, tells the others.
        if len(errors) == len(machines):
            raise errors[0]

    def _leave_line(self, record: JobRecord) -> None:
        """Ask the waiter of a waiting job to leave the line; a job that is being submitted has none."""
        if elsewhere := lifecycle.unseen(record):
            # Its pid belongs to another process here, or to none.
            raise LaunchError(elsewhere)
        if not record.done and lifecycle.client_lives(record):
            signal_waiter(record)

    def _being_submitted(self, record: JobRecord) -> JobRecord:
        """Return the row of a job without machines; mark the job as lost when its client has died."""
        if lifecycle.client_lives(record):
            return record
        # The waiter may have started the job and ended between reading the row and looking at the process.
        record = self._index.get(record.name)
        if record.done or record.service is not None:
            return record
        failure = waiter_died() if record.secondary_status == PENDING else lifecycle.client_died("the job's hosts ran")
        return lifecycle.settle(self._index, record.name, failure)

    def _monitor_of(self, record: JobRecord) -> JobMonitor:
        """Return the monitor of the job's current attempt."""
        attempt, monitor = current_attempt(record), self._monitors.get(record.name)
        # The row may name another attempt by now, which possibly another process has started.
        if monitor is None or monitor.job != attempt.name:
            self._close(record.name)
            monitor = self._monitors[record.name] = JobMonitor(attempt.name, attempt.machines, self._transport)
        return monitor

    def _follow_current(self, name: str) -> tuple[JobMonitor, Mapping[str, int]] | None:
        """Return the monitor of the job's current attempt, and where it begins in the files here; None before it."""
        record = self._index.get(name)
        if record.service is None:
            return None
        return self._monitor_of(record), current_attempt(record).file_begins

    def _complete(self, record: JobRecord, monitor: JobMonitor) -> Thread:
        """Start to complete a job whose hosts are over."""
        plan = self._plans.get(record.name) or local_plan(parse_plan(record.plan_dict), self._home.job(record.name))
        self._ending[monitor.job] = hosts = self._ended_hosts(record, plan, monitor)
        return start_completion(hosts)

    def _is_undecided(self, record: JobRecord) -> bool:
        """Report whether the machines of an attempt that is over have yet to say what follows; ask them again later."""
        name = current_attempt(record).name
        hosts = self._ending.get(name)
        if hosts is None or hosts.looks_again_at is None or self._completions[name].is_alive():
            return False
        if time.monotonic() < hosts.looks_again_at:
            return True
        del self._ending[name], self._completions[name]
        if hosts.has_lost:
            self._close(record.name)
        return False

    def _ended_hosts(self, record: JobRecord, plan: JobPlan, monitor: JobMonitor) -> RestartableHosts:
        """Return the hosts of an attempt that is over, as `attempt_end` needs them."""
        kind = ObservedHosts if current_attempt(record).members else RestartableHosts
        return kind(record, plan, monitor.states, self._transport, self._home, self._submission)

    def _release_reader(self, name: str) -> None:
        """Close the job's connections when its last open log is closed; a later request opens new ones."""
        self._readers[name] -= 1
        if not self._readers[name]:
            self._close(name)

    def _close(self, name: str) -> None:
        monitor = self._monitors.pop(name, None)
        if monitor is not None:
            monitor.close()
