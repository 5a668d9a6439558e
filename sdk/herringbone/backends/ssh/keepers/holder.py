"""The holder of a job's lease: follows the job, and starts its next attempt, as a client does that looks at the job.

    RunningJobs.describe --> the attempt is over --> end_attempt --> decide --> restart, over connections of keepers
                                                                       |
                                                                       +-----> none: the machines agree that it is over

The code is the client's, over another transport, with an index of its own in the job's folder. Three steps differ: the
machines agree on an attempt before its first host starts, all are clear of earlier ones by then, and nothing is packed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.review.checks import checkpoint_folder
from herringbone.backends.ssh.agent.store import code_folder
from herringbone.backends.ssh.attempts.current import CurrentAttempt, attempt_name
from herringbone.backends.ssh.attempts.lease import STOP, TAKE_OVER
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.finish.retry import RestartableHosts, merge_checkpoints
from herringbone.backends.ssh.keepers.keeper import Keeper, complain
from herringbone.backends.ssh.keepers.transport import KeeperTransport
from herringbone.backends.ssh.machines.inventory import Inventory, Machine
from herringbone.backends.ssh.transport.protocol import in_parallel
from herringbone.controller.attempt_end import last_columns
from herringbone.controller.permit import lasting_clock
from herringbone.controller.retry import Attempt, announced, excluded_machines
from herringbone.controller.verdict import Verdict
from herringbone.plan.plan import JobPlan, parse_plan
from herringbone.records.home import Home, JobFolder
from herringbone.records.index import FAILED, IN_PROGRESS, TRAINING, JobRecord
from herringbone_contract.errors import HerringboneError, HostError
from herringbone_contract.failure import Failure
from herringbone_contract.paths import INSIDE

if TYPE_CHECKING:
    from herringbone.backends.ssh.agent.messages import Message
    from herringbone.backends.ssh.attempts.lease import Member
    from herringbone.backends.ssh.follow.monitor import JobMonitor
    from herringbone.backends.ssh.keepers.sealed import Sealed

_PAUSE_SECONDS = 0.1
# Between two looks for machines that are missing for the next attempt.
_PATIENT_SECONDS = 2.0


class Tenure:
    """The time in which `keeper` holds the lease of `term`; most methods raise `HostError` after it."""

    def __init__(self, keeper: Keeper, term: int) -> None:
        self.keeper, self.term, self.config = keeper, term, keeper.config

    @property
    def value(self) -> dict[str, Any]:
        """The entry that the machines agree on."""
        with self.keeper.held(self.term) as member:
            return member.entry.value

    def is_wished(self, wish: str) -> bool:
        """Report whether a client has asked a machine for something."""
        with self.keeper.member() as member:
            return wish in member.wishes

    def record(self, attempt: int, value: dict[str, Any]) -> None:
        """Have the machines agree on an attempt; return when a majority has it."""
        with self.keeper.held(self.term) as member:
            member.record(attempt, value, lasting_clock())
        self.keeper.wake()
        self._wait_until(lambda member: member.is_recorded)

    def await_clear(self) -> None:
        """Wait until no machine of the job runs an earlier attempt, or could start one."""
        margin = self.config.margin
        self._wait_until(lambda member: all(member.is_clear(name, lasting_clock(), margin) for name in member.members))

    def open(self, machine: str, hello: Message) -> Sealed:
        """Open a connection to a machine as the job's holder."""
        _ = self.value
        return self.keeper.open(machine, {**hello, "term": self.term})

    def _wait_until(self, is_so: Callable[[Member], bool]) -> None:
        while True:
            with self.keeper.held(self.term) as member:
                if is_so(member):
                    return
            # Answers of the others may take a pulse each.
            time.sleep(_PAUSE_SECONDS)
            self.keeper.wake()


def decide(keeper: Keeper, term: int) -> None:
    """Follow the job and decide about its attempts, until it is over or the lease of `term` is not this machine's."""
    tenure, job = Tenure(keeper, term), keeper.config.job
    try:
        if "over" in tenure.value:
            return
        backend = HolderBackend(tenure)
        while not backend.describe(job).done:
            _ = tenure.value
            backend.complete_again(job)
            backend.pass_on_stop(job)
            time.sleep(_PAUSE_SECONDS)
    except HostError as error:
        complain(error)


class HolderBackend(SshBackend):
    """The job as its holder sees it, with an index and files of its own, which end with the tenure."""

    def __init__(self, tenure: Tenure) -> None:
        self.tenure, config = tenure, tenure.config
        folder = tenure.keeper.home.job(config.job).path / "keeper"
        shutil.rmtree(folder, ignore_errors=True)
        super().__init__(Home(folder), KeeperTransport(tenure.open), environ={})
        self._home.make()
        self._home.job(config.job).logs.mkdir(parents=True)
        # The machines have the data: no attempt sends any.
        plan = self._plans[config.job] = msgspec.structs.replace(parse_plan(config.base.plan), channels=())
        code = code_folder(tenure.keeper.home) / f"{config.base.code}.tar.gz"
        attempt = msgspec.structs.replace(
            msgspec.convert(tenure.value["attempt"], CurrentAttempt), code_path=str(code), code_digest=config.base.code
        )
        started = time.time() - (lasting_clock() - tenure.keeper.began)
        self._index.add(
            JobRecord(
                name=config.job,
                backend=self.name,
                plan=json.dumps(plan.to_dict()),
                created=started,
                started=started,
                secondary_status=TRAINING,
                hosts=len(plan.hosts),
                service=attempt.to_json(),
            )
        )

    def complete_again(self, name: str) -> None:
        """Complete an attempt anew whose completion has failed, as on a full disk."""
        monitor = self._monitors.get(name)
        if monitor is not None and (thread := self._completions.get(monitor.job)) and not thread.is_alive():
            time.sleep(_PATIENT_SECONDS)
            del self._completions[monitor.job]

    def pass_on_stop(self, name: str) -> None:
        """Stop an attempt whose hosts have not heard that a client asked for it, as one that began at that moment."""
        monitor = self._monitors.get(name)
        if monitor is None or monitor.is_over or not self.tenure.is_wished(STOP):
            return
        rows = [state.row for state in monitor.states if state.row is not None]
        if self._index.get(name).status == IN_PROGRESS and all(row["status"] == IN_PROGRESS for row in rows):
            self.stop(name)

    def _inventory(self, plan: JobPlan) -> Inventory:  # noqa: ARG002 - the job's own machines
        return Inventory(machines=tuple(self.tenure.config.machines.values()), shared=self.tenure.config.shared)

    def _ended_hosts(self, record: JobRecord, plan: JobPlan, monitor: JobMonitor) -> RestartableHosts:
        hosts = HolderHosts(record, plan, monitor.states, self._transport, self._home, self._submission)
        hosts.tenure = self.tenure
        return hosts


class HolderHosts(RestartableHosts):
    """The hosts of an attempt, and the start of the next one once the machines agree on it."""

    tenure: Tenure
    # A client goes on with the job.
    is_left = False

    @property
    def is_asked_to_stop(self) -> bool:
        return self.tenure.is_wished(STOP) or super().is_asked_to_stop

    def judge(self) -> Verdict:
        if self._has_begun:
            return super().judge()
        # Its holder was lost before the start, or a machine was cut off at that moment.
        message = f"attempt {len(self.earlier) + 1} did not begin on {', '.join(self.machines.values())}"
        return Verdict(FAILED, FAILED, Failure(exit_code=0, message=message, fault="host_lost"))

    def collect(self, verdict: Verdict) -> None:
        # A client fetches and packs the results.
        pass

    def output(self) -> Path | None:  # type: ignore[override]
        return None

    def finish(self, verdict: Verdict, model: Path | str | None) -> None:
        # An entry beyond this attempt: machines start nothing more of it.
        over = None if self.is_left else last_columns(verdict, None, time.time())
        self.tenure.record(len(self.earlier) + 2, self.tenure.value)
        self.tenure.await_clear()
        self.tenure.record(len(self.earlier) + 2, {**self.tenure.value, "over": over})
        super().finish(verdict, model)

    def _unavailable(self, failed: Attempt) -> dict[str, str]:
        # Machines that were silent may be back.
        return excluded_machines([*self.earlier, failed])

    def _start_attempt(self, failed: Attempt, checkpoints: Path | None) -> None:
        agreed = dict[str, Machine]()

        def agree(machines: Mapping[str, Machine]) -> None:
            told = announced(failed, self.retries, {host: machine.name for host, machine in machines.items()})
            name, earlier = attempt_name(self.job, failed.number + 1), (*self.earlier, told)
            attempt = msgspec.structs.replace(
                self._attempt, machines=dict(machines), name=name, failed=earlier, code_path=None
            )
            self.tenure.record(failed.number + 1, {"attempt": msgspec.to_builtins(attempt)})
            agreed.update(machines)
            self.tenure.await_clear()

        while not agreed:
            try:
                self._start_hosts(failed, checkpoints, agree)
            except HerringboneError as error:
                complain(error)
                _ = self.tenure.value
                # After the agreement, the attempt is one that has failed: some of its hosts may run.
                if agreed:
                    break
                self.is_left = not self.stopping and self.tenure.is_wished(TAKE_OVER)
                if self.stopping or self.is_left:
                    raise
                # Machines that come back in time are waited for.
                time.sleep(_PATIENT_SECONDS)
        self._record_attempt(failed, agreed)

    def _fetch_all_checkpoints(self) -> Path | None:
        """Fetch the checkpoints of the newest attempt that left any, from all machines that can be reached.

        A machine may have lost the start of the last attempt, or come back since an earlier one. Checkpoints of older
        attempts than that are refused: it began with the newest of them.
        """
        if checkpoint_folder(self._plan) is not None:
            return None
        folder, number = self._folder.path / "checkpoints", len(self.earlier) + 1
        for past in (self.machines, *(attempt.machines for attempt in reversed(self.earlier))):
            shutil.rmtree(folder, ignore_errors=True)
            name = attempt_name(self.job, number)
            # At a time: one that is cut off takes a while to be known as such.
            if any(in_parallel(partial(self._fetch_past, name, past, folder), past)):
                return merge_checkpoints(folder)
            number -= 1
        return None

    def _fetch_past(self, name: str, machines: Mapping[str, str], folder: Path, host: str) -> bool:
        """Fetch a host's checkpoints of an attempt; return whether there is that attempt's folder."""
        # Below the work folder, whose place its machine knows.
        remote = JobFolder(Path("jobs", name)).host(host) / INSIDE.checkpoints
        try:
            self._transport.fetch(self.tenure.config.machines[machines[host]], str(remote), folder / host)
        except HostError:
            return False
        return True
