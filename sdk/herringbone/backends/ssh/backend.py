"""`ssh:<inventory>`: hosts are machines of one's own. Each keeps its host by itself; we start them, ask, and fetch.

client    choose, lock -> code, data -> start each host -> follow: rows and logs -> fetch what they left, judge, pack
machine   desk (one per visit) -> controller (one per job) -> supervisor -> ranks
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.ssh.completion import Ending
from herringbone.backends.ssh.follow import Following
from herringbone.backends.ssh.host_selection import inventory_path, read_inventory
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.logs import RemoteLogs
from herringbone.backends.ssh.lookup import find_jobs
from herringbone.backends.ssh.openssh import SshRoad, control_folder
from herringbone.backends.ssh.retry import Renewal
from herringbone.backends.ssh.review import places, review
from herringbone.backends.ssh.running_jobs import Registered, registered, split_attempt
from herringbone.backends.ssh.submission import Submission
from herringbone.backends.ssh.transport import Road
from herringbone.jobs.home import Home, find_home
from herringbone.jobs.index import STOPPING, TRAINING, JobRecord
from herringbone.jobs.lifecycle import claim, client_died, client_lives, poll_until_done, settle
from herringbone.jobs.polling import Pace
from herringbone.planning.plan import parse_plan
from herringbone_contract.errors import HostError

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource
    from herringbone.engine.client import Engine
    from herringbone.planning.plan import JobPlan

# What comes is pushed by the machines: a look takes a tenth of a millisecond for each.
_PACE = Pace(shortest=0.01, longest=0.1, slower=1.05)
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.02
_THREADS = 32


def make_backend() -> SshBackend:
    """Return the backend for this user's jobs."""
    return SshBackend(find_home(), SshRoad(control=control_folder()))


def _find_engine() -> Engine:
    from herringbone.engine.locate import find_engine

    return find_engine(os.environ, Path.home())


class SshBackend(OwnHostsBackend):
    """Runs jobs on machines that `road` leads to; `home` keeps what is known of them, and what they brought.

    `find` finds this machine's container engine, whose images go to machines that run containers.
    """

    name = "ssh"
    pace = _PACE

    def __init__(
        self,
        home: Home,
        road: Road[Machine],
        *,
        environ: Mapping[str, str] = os.environ,
        find: Callable[[], Engine] = _find_engine,
    ) -> None:
        super().__init__(home)
        self._road = road
        self._environ = environ
        self._find = find
        self._followings: dict[str, Following] = {}
        self._endings: dict[str, Ending] = {}
        self._readers: Counter[str] = Counter()
        # Unmasked, of the jobs that were submitted here.
        self._plans: dict[str, JobPlan] = {}

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        return review(plan, read_inventory(inventory_path(plan)))

    def request(self, plan: JobPlan) -> dict[str, Any]:
        path = inventory_path(plan)
        return {"inventory": str(path), "machines_if_free": places(plan, read_inventory(path))}

    def submit(self, plan: JobPlan) -> None:
        name = plan.job_name
        inventory = read_inventory(inventory_path(plan))
        with claim(plan, self.name, self._home) as job:
            job.make_folder(exist_ok=True)
            scratch = self._home.cache / "code"
            submission = Submission(
                plan, inventory, self._road, scratch=scratch, environ=self._environ, find=self._find
            )
            started = submission.run()
            machines = {host: machine for host, (machine, _) in started.items()}
            visits = {host: visit for host, (_, visit) in started.items()}
            self._followings[name] = Following(name, machines, self._road, visits=visits)
            self._plans[name] = plan
            assert submission.code is not None
            code = submission.code
            now = Registered(machines=machines, name=name, code_path=str(code.path), code_digest=code.digest)
            self._index.update(
                name,
                service=now.to_json(),
                started=time.time(),
                secondary_status=TRAINING,
            )

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done:
            return record
        if record.service is None:
            return self._being_submitted(record)
        following = self._following_of(record)
        if following.job not in self._endings:
            following.look()
            if following.is_over:
                self._endings[following.job] = self._ending_of(record, following)
                following.close()
        return self._index.get(name)

    def logs(self, name: str) -> LogSource:
        record = self._index.get(name)
        files = self._home.job(name)
        if record.done or record.service is None:
            return super().logs(name)
        self._readers[name] += 1
        return RemoteLogs(lambda: self._current(name), files.log, close=lambda: self._let_go(name))

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self._index.get(name)
        if record.done or record.service is None:
            return
        self._index.update(name, unless_done=True, status=STOPPING, secondary_status=STOPPING)
        self._ask_all(record, {"ask": "stop", "grace": grace})

    def kill(self, name: str) -> None:
        record = self._index.get(name)
        if record.done or record.service is None:
            return
        self._ask_all(record, {"ask": "kill"})
        poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=_POLL_SECONDS)

    def find_jobs(self, inventory: Path) -> list[str]:
        """Look on all machines of an inventory for jobs, whoever submitted them; return their names, the newest first.

        From then on they are known here as those that were submitted here. Raises `HostError` when no machine answers.
        """
        self._home.make()
        machines = read_inventory(inventory).machines
        found = find_jobs(machines, self._road)
        known = {record.name: record for record in self._index.all()}
        for record in found:
            if record.name in known and _goes_on_elsewhere(known[record.name], record):
                self._index.remove(record.name)
                self._index.add(record)
            elif record.name not in known:
                self._index.add(record)
        return [record.name for record in found]

    def _ask_all(self, record: JobRecord, message: dict[str, Any]) -> None:
        """Ask every machine for something about a job, on visits of their own.

        Raises `HostError` when none has heard it.
        """
        now = registered(record)

        def ask(machine: Machine) -> HostError | None:
            try:
                with self._road.visit(machine) as visit:
                    visit.ask({**message, "job": now.name})
            except HostError as error:
                return error
            return None

        with ThreadPoolExecutor(_THREADS) as pool:
            errors = [error for error in pool.map(ask, now.machines.values()) if error is not None]
        if len(errors) == len(now.machines):
            raise errors[0]

    def _being_submitted(self, record: JobRecord) -> JobRecord:
        """A row without machines is of a client that is on its way, or died on it."""
        if client_lives(record):
            return record
        return settle(self._index, record.name, client_died("the job's hosts ran"))

    def _following_of(self, record: JobRecord) -> Following:
        """Return what follows the job's present attempt."""
        now, following = registered(record), self._followings.get(record.name)
        if following is None or following.job != now.name:
            self._close(record.name)
            following = self._followings[record.name] = Following(now.name, now.machines, self._road)
        return following

    def _current(self, name: str) -> tuple[Following, Mapping[str, int]]:
        """Return what follows the job's present attempt, and where in the logs here it begins."""
        record = self._index.get(name)
        return self._following_of(record), registered(record).begins

    def _ending_of(self, record: JobRecord, following: Following) -> Ending:
        plan = self._plans.get(record.name) or parse_plan(record.plan_dict)
        renewal = Renewal(record, plan, following, self._road, self._home, environ=self._environ, find=self._find)
        return Ending(record, plan, following, self._road, self._home, renewal=renewal)

    def _let_go(self, name: str) -> None:
        """Nobody reads on: who asks next visits the machines anew."""
        self._readers[name] -= 1
        if not self._readers[name]:
            self._close(name)

    def _close(self, name: str) -> None:
        following = self._followings.pop(name, None)
        if following is not None:
            following.close()


def _goes_on_elsewhere(known: JobRecord, found: JobRecord) -> bool:
    """Say whether a job that somebody else submitted is at a later attempt than the one that is known here."""
    if known.service is None or known.backend != SshBackend.name:
        return False
    now = registered(known)
    return now.code_path is None and split_attempt(registered(found).name)[1] > split_attempt(now.name)[1]
