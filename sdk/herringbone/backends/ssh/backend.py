"""`ssh:<inventory>`: hosts are the user's own machines. Each machine runs its host without the client.

client    choose and claim machines -> send code and data -> start hosts -> follow rows and logs -> fetch, judge, pack
machine   agent (one per connection) -> controller (one per job) -> supervisor -> ranks
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends import lifecycle
from herringbone.backends.on_s3 import staged
from herringbone.backends.ssh.attempts.current import (
    attempt_name,
    current_attempt,
    split_attempt,
)
from herringbone.backends.ssh.follow.monitor import JobMonitor
from herringbone.backends.ssh.inspection.jobs import find_jobs
from herringbone.backends.ssh.machines.inventory import Machine, MachinesBusyError, inventory_path, read_inventory
from herringbone.backends.ssh.review import planned_machines, retried_by, review
from herringbone.backends.ssh.running import KILL_SECONDS, RunningJobs
from herringbone.backends.ssh.start.claims import Granted
from herringbone.backends.ssh.start.images import check_image_here
from herringbone.backends.ssh.start.line import wait_in_line
from herringbone.backends.ssh.start.submission import NextAttempt, Submission
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport, control_folder
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone.records.home import Home, find_home
from herringbone.records.index import STARTING, TRAINING, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import HostError

if TYPE_CHECKING:
    from herringbone.backends.ssh.machines.inventory import Inventory
    from herringbone.engine.client import Engine
    from herringbone.plan.plan import JobPlan


def make_backend() -> SshBackend:
    """Return the backend for this user's jobs."""
    return SshBackend(find_home(), OpenSSHTransport(control=control_folder()))


def _find_engine() -> Engine:
    from herringbone.engine.locate import find_engine

    return find_engine(os.environ, home_folder())


class SshBackend(RunningJobs):
    """Runs jobs on machines that `transport` reaches; `home` holds their rows and what was fetched.

    `find` finds this machine's container engine, whose images are sent to machines that run containers.
    """

    name = "ssh"

    def __init__(
        self,
        home: Home,
        transport: Transport[Machine],
        *,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[], Engine] = _find_engine,
        kill_seconds: float = KILL_SECONDS,
    ) -> None:
        super().__init__(home, transport, kill_seconds=kill_seconds)
        self._environ = environ
        self._find = find

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        inventory = read_inventory(inventory_path(plan))
        unused = review(plan, inventory)
        if plan.arguments.image_uri and "image_uri" not in unused:
            check_image_here(plan, self._find)
        return unused

    def request(self, plan: JobPlan) -> dict[str, Any]:
        path = inventory_path(plan)
        inventory = read_inventory(path)
        return {
            "inventory": str(path),
            "machines_if_free": planned_machines(plan, inventory),
            "retried_by": retried_by(plan, inventory),
        }

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
            self._inventory(plan),
            self._transport,
            scratch=self._home.cache / "code",
            environ=self._environ,
            find=self._find,
            next_attempt=next_attempt,
            granted=granted,
        )

    def _inventory(self, plan: JobPlan) -> Inventory:
        """Return the machines of which a job may have some."""
        return read_inventory(inventory_path(plan))

    def _run(self, plan: JobPlan, submission: Submission) -> None:
        """Start the hosts, and write into the row where they run."""
        name, started = plan.job_name, submission.run()
        machines = {host: machine for host, (machine, _) in started.items()}
        # Follow over the connections of the submission: new ones would have to log in again.
        connections = {host: connection for host, (_, connection) in started.items()}
        self._monitors[name] = JobMonitor(name, machines, self._transport, connections=connections)
        # From now on any process can follow and stop the job: the row names its machines.
        self._index.update(name, service=submission.attempt.to_json(), started=time.time(), secondary_status=TRAINING)
        JobEvents(self._home.job(name).job_events).state(TRAINING)

    def forget(self, record: JobRecord) -> str:
        if record.service is None:
            return ""
        attempt = current_attempt(record)
        names = [attempt_name(record.name, number) for number in range(1, split_attempt(attempt.name)[1] + 1)]
        requests = [{"ask": "forget", "job": name, "if_over": True} for name in names]
        answers = ask_each(self._transport, (attempt.members or attempt.machines).values(), *requests)
        errors = [str(answer) for answer in answers if isinstance(answer, HostError)]
        # Machines of earlier attempts are known by name only.
        earlier = {name for failed in attempt.failed for name in failed.machines.values()}
        earlier -= {*attempt.machine_names.values(), *attempt.members}
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


def _is_later_attempt(known: JobRecord, reported: JobRecord) -> bool:
    """Report whether machines run a later attempt, started elsewhere, than the row that is known here."""
    if known.service is None or known.backend != SshBackend.name:
        return False
    attempt = current_attempt(known)
    # A job that was submitted here has a code path. Its row is kept up to date by this machine.
    return (
        attempt.code_path is None and split_attempt(current_attempt(reported).name)[1] > split_attempt(attempt.name)[1]
    )
