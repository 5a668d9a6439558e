"""`ssh:<inventory>`: hosts are the user's own machines. Each machine runs its host without the client.

client    choose and claim machines -> send code and data -> start hosts -> follow rows and logs -> fetch, judge, pack
machine   agent (one per connection) -> controller (one per job) -> supervisor -> ranks
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from herringbone.backends import lifecycle
from herringbone.backends.on_s3 import staged
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.shown_logs import ShownLogs
from herringbone.backends.ssh.attempts.current import (
    CurrentAttempt,
    attempt_name,
    current_attempt,
    split_attempt,
)
from herringbone.backends.ssh.finish.completion import as_over, end_packing, start_completion
from herringbone.backends.ssh.finish.retry import RestartableHosts
from herringbone.backends.ssh.follow.files import RemoteFiles
from herringbone.backends.ssh.follow.logs import EVENTS, LOG, RemoteEvents, RemoteLogs
from herringbone.backends.ssh.follow.monitor import FIRST_LOOK_SECONDS, JobMonitor
from herringbone.backends.ssh.inspection.jobs import find_jobs
from herringbone.backends.ssh.machines.inventory import Machine, MachinesBusyError, inventory_path, read_inventory
from herringbone.backends.ssh.review import planned_machines, review
from herringbone.backends.ssh.start.images import check_image_here
from herringbone.backends.ssh.start.line import wait_in_line
from herringbone.backends.ssh.start.submission import Granted, NextAttempt, Submission
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport, control_folder
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone.plan.plan import parse_plan
from herringbone.records.home import Home, find_home
from herringbone.records.index import PENDING, STARTING, STOPPING, TRAINING, UPLOADING, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.s3.staging import local_plan
from herringbone.slots.pending import signal_waiter, waiter_died
from herringbone.system.polling import Pace
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import HostError, LaunchError, RequestError
from herringbone_contract.events.requests import is_for

if TYPE_CHECKING:
    from herringbone.engine.client import Engine
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Answers, EventSource, LogSource
    from herringbone.protocols.host_access import HostAccess
    from herringbone_contract.events.requests import Request

# The machines push what is new, and a look at a connection without news takes a tenth of a millisecond.
_PACE = Pace(shortest=0.01, longest=0.1, slower=1.05)
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.02


def make_backend() -> SshBackend:
    """Return the backend for this user's jobs."""
    return SshBackend(find_home(), OpenSSHTransport(control=control_folder()))


def _find_engine() -> Engine:
    from herringbone.engine.locate import find_engine

    return find_engine(os.environ, home_folder())


class SshBackend(OwnHostsBackend):
    """Runs jobs on machines that `transport` reaches; `home` holds their rows and what was fetched.

    `find` finds this machine's container engine, whose images are sent to machines that run containers. A `kill` waits
    `kill_seconds` for the job's end.
    """

    name = "ssh"
    pace = _PACE

    def __init__(
        self,
        home: Home,
        transport: Transport[Machine],
        *,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[], Engine] = _find_engine,
        kill_seconds: float = _KILL_SECONDS,
    ) -> None:
        super().__init__(home)
        self._transport, self._kill_seconds = transport, kill_seconds
        self._environ = environ
        self._find = find
        # By job: the monitor of its current attempt, with open connections.
        self._monitors: dict[str, JobMonitor] = {}
        # By the job's name on machines, which differs for each attempt.
        self._completions: dict[str, Thread] = {}
        # Open logs per job; the last one that is closed closes the job's connections.
        self._readers: Counter[str] = Counter()
        # Jobs that the user has named to this backend, which looks at others for a list.
        self._named: set[str] = set()
        # Plans with their secrets, of the jobs that this Python submitted; the index has them masked.
        self._plans: dict[str, JobPlan] = {}

    @property
    def transport(self) -> Transport[Machine]:
        return self._transport

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        inventory = read_inventory(inventory_path(plan))
        unused = review(plan, inventory)
        if plan.arguments.image_uri and "image_uri" not in unused:
            check_image_here(plan, self._find)
        return unused

    def request(self, plan: JobPlan) -> dict[str, Any]:
        path = inventory_path(plan)
        return {"inventory": str(path), "machines_if_free": planned_machines(plan, read_inventory(path))}

    def submit(self, plan: JobPlan) -> None:
        name = plan.job_name
        with lifecycle.claim(plan, self.name, self._home) as job:
            job.make_folder(exist_ok=True)
            folder = self._home.job(name)
            folder.logs.mkdir(exist_ok=True)
            plan = staged(plan, self._home, self._index)
            JobEvents(folder.job_events).state(STARTING)
            arrival = time.time()
            submission = self._submission(plan)
            self._plans[name] = plan
            try:
                self._run(plan, submission)
            except MachinesBusyError:
                if not plan.queue:
                    raise
                assert submission.code is not None
                wait_in_line(plan, submission.code, arrival, self._home, stop=self.stop)

    def launch(self, plan: JobPlan, granted: Granted) -> None:
        """Start a job that has waited in line, on the machines that it was granted; its waiter calls this."""
        name = plan.job_name
        JobEvents(self._home.job(name).job_events).state(STARTING)
        if self._index.update(name, unless_done=True, secondary_status=STARTING, facts=None):
            self._run(plan, self._submission(plan, granted=granted))
        self._close(name)

    def _submission(
        self, plan: JobPlan, *, next_attempt: NextAttempt | None = None, granted: Granted | None = None
    ) -> Submission:
        return Submission(
            plan,
            read_inventory(inventory_path(plan)),
            self._transport,
            scratch=self._home.cache / "code",
            environ=self._environ,
            find=self._find,
            next_attempt=next_attempt,
            granted=granted,
        )

    def _run(self, plan: JobPlan, submission: Submission) -> None:
        """Start the hosts, and write into the row where they run."""
        name, started = plan.job_name, submission.run()
        machines = {host: machine for host, (machine, _) in started.items()}
        # Follow over the connections of the submission: new ones would have to log in again.
        connections = {host: connection for host, (_, connection) in started.items()}
        self._monitors[name] = JobMonitor(name, machines, self._transport, connections=connections)
        assert submission.code is not None
        code = submission.code
        attempt = CurrentAttempt(machines=machines, name=name, code_path=str(code.path), code_digest=code.digest)
        # From now on any process can follow and stop the job: the row names its machines.
        self._index.update(name, service=attempt.to_json(), started=time.time(), secondary_status=TRAINING)
        JobEvents(self._home.job(name).job_events).state(TRAINING)

    def find(self, name: str, session: object = None) -> None:
        super().find(name, session)
        self._named.add(name)

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done:
            return record
        if record.service is None:
            return self._being_submitted(record)
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
        record = self._index.get(name)
        files = self._home.job(name)
        # Over: the files on this machine are all there is.
        if record.done:
            return super().logs(name)
        self._readers[name] += 1
        remote = RemoteFiles(lambda: self._follow_current(name), files.logs, (LOG,))
        return ShownLogs(RemoteLogs(remote, close=lambda: self._release_reader(name)))

    def events(self, name: str) -> EventSource:
        record = self._index.get(name)
        files = self._home.job(name)
        if record.done:
            return super().events(name)
        self._readers[name] += 1
        remote = RemoteFiles(lambda: self._follow_current(name), files.logs, EVENTS)
        return RemoteEvents(remote, files.job_events, close=lambda: self._release_reader(name))

    def ask(self, name: str, request: Request) -> Answers:
        # Imported here: only clients that look into a running job need it.
        from herringbone.backends.ssh.follow.access import MachineAnswers

        record = self._index.get(name)
        if record.service is None:
            raise RequestError(f"job {name} is still being submitted; ask it once its hosts run")
        attempt = current_attempt(record)
        machines = {host: machine for host, machine in attempt.machines.items() if is_for(request, host)}
        return MachineAnswers(attempt.name, machines, self._transport, request)

    def access(self, name: str, host: str) -> HostAccess:
        # Imported here: only a shell and a debugger need it.
        from herringbone.backends.ssh.follow.access import MachineWays
        from herringbone.protocols.host_access import CommandAccess

        record = self._index.get(name)
        if record.service is None:
            raise RequestError(f"job {name} is still being submitted; its hosts do not run yet")
        attempt = current_attempt(record)
        if host not in attempt.machines:
            raise RequestError(f"job {name}: {host} does not run in this attempt")
        machine = attempt.machines[host]
        with self._transport.connect(machine) as connection:
            place = connection.ask({"ask": "place"})
        return CommandAccess(MachineWays(self._transport, machine, attempt.name, host, place))

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

    def forget(self, record: JobRecord) -> str:
        if record.service is None:
            return ""
        attempt = current_attempt(record)
        names = [attempt_name(record.name, number) for number in range(1, split_attempt(attempt.name)[1] + 1)]
        requests = [{"ask": "forget", "job": name, "if_over": True} for name in names]
        answers = ask_each(self._transport, attempt.machines.values(), *requests)
        errors = [str(answer) for answer in answers if isinstance(answer, HostError)]
        # Machines of earlier attempts are known by name only.
        earlier = {name for failed in attempt.failed for name in failed.machines.values()}
        earlier -= set(attempt.machine_names.values())
        errors += [f"{name}: a machine of an earlier attempt" for name in sorted(earlier)]
        remedy = "its files there stay until `herringbone hosts clean INVENTORY --older-than AGE`"
        return f"{'; '.join(errors)}: {remedy}" if errors else ""

    def find_jobs(self, inventory: Path) -> list[str]:
        """Return the names of all jobs on the machines of an inventory, whoever submitted them, the newest first.

        The jobs are in this index from then on, as if they had been submitted here. Raises `HostError` when no machine
        answers.
        """
        self._home.make()
        machines = read_inventory(inventory).machines
        reported = find_jobs(machines, self._transport)
        known = {record.name: record for record in self._index.all()}
        for record in reported:
            if record.name in known and _is_later_attempt(known[record.name], record):
                self._index.remove(record.name)
                self._index.add(record)
            elif record.name not in known:
                self._index.add(record)
        return [record.name for record in reported]

    def _ask_all(self, record: JobRecord, message: dict[str, Any]) -> None:
        """Send every machine of a job a request, over new connections.

        Raises `HostError` when no machine has answered.
        """
        attempt = current_attempt(record)
        # New connections: those of the monitor may be broken at this moment.
        answers = ask_each(self._transport, attempt.machines.values(), {**message, "job": attempt.name})
        errors = [answer for answer in answers if isinstance(answer, HostError)]
        # One host that hears of it is enough: its supervisor tells the others.
        if len(errors) == len(attempt.machines):
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
        return start_completion(
            RestartableHosts(record, plan, monitor.states, self._transport, self._home, self._submission)
        )

    def _release_reader(self, name: str) -> None:
        """Close the job's connections when its last open log is closed; a later request opens new ones."""
        self._readers[name] -= 1
        if not self._readers[name]:
            self._close(name)

    def _close(self, name: str) -> None:
        monitor = self._monitors.pop(name, None)
        if monitor is not None:
            monitor.close()


def _is_later_attempt(known: JobRecord, reported: JobRecord) -> bool:
    """Report whether machines run a later attempt, started elsewhere, than the row that is known here."""
    if known.service is None or known.backend != SshBackend.name:
        return False
    attempt = current_attempt(known)
    # A job that was submitted here has a code path. Its row is kept up to date by this machine.
    return (
        attempt.code_path is None and split_attempt(current_attempt(reported).name)[1] > split_attempt(attempt.name)[1]
    )
