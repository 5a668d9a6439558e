"""Complete a job on this machine: fetch what its hosts left; `controller.attempt_end` decides, packs and restarts.

This runs in a thread, so that the caller who waits for the job still sees messages. When several processes follow one
job, a file lock lets one of them do it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from herringbone.backends.lifecycle import change_state, settle
from herringbone.backends.on_s3 import send_packed
from herringbone.backends.review.checks import output_folder
from herringbone.backends.ssh.attempts.current import current_attempt
from herringbone.backends.ssh.attempts.job_state import HostState, ended_at, judge_job
from herringbone.controller.attempt_end import EndedHosts, end_attempt, last_columns
from herringbone.controller.attempts import read_log
from herringbone.controller.log_files import say
from herringbone.controller.retry import policies_of
from herringbone.records.home import JobFolder
from herringbone.records.index import LIMITS, STOPPED, STOPPING, UPLOADING, JobIndex, JobRecord
from herringbone.records.short_names import RESULTS
from herringbone_contract.errors import HerringboneError, HostError
from herringbone_contract.failure import Failure
from herringbone_contract.files import locked
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.backends.ssh.machines.inventory import Machine
    from herringbone.backends.ssh.start.submission import Submission
    from herringbone.backends.ssh.transport.protocol import Transport
    from herringbone.controller.artifacts import Bases
    from herringbone.controller.verdict import Verdict
    from herringbone.plan.plan import JobPlan
    from herringbone.records.home import Home

_THREADS = 8
# The grace in the row of a job whose packing is to end: any process may write it, and the completion reads it.
_NO_GRACE = 0.0


def end_packing(index: JobIndex, name: str) -> None:
    """Ask the completion of a job that is Uploading, in whichever process it runs, to end without an archive."""
    index.update(name, unless_done=True, stop_grace=_NO_GRACE)


def packing_is_ended(record: JobRecord) -> bool:
    """Report whether somebody has called `end_packing`."""
    return record.stop_grace == _NO_GRACE


def as_over(record: JobRecord, states: Sequence[HostState]) -> JobRecord:
    """Return the row of a job that is over, as it will be when its results are fetched."""
    return replace(record, **last_columns(judge_job(states), None, ended_at(states, time.time())))


class MachineHosts(EndedHosts):
    """The hosts of a job's attempt on machines; `states` are the last that their machines have reported of them.

    `plan` contains its secrets only in the Python that submitted the job; elsewhere they are masked. `retry` has the
    part that starts the next attempt, for which `submission` makes one of a plan.
    """

    def __init__(
        self,
        record: JobRecord,
        plan: JobPlan,
        states: Sequence[HostState],
        transport: Transport[Machine],
        home: Home,
        submission: Callable[..., Submission],
    ) -> None:
        self._submission = submission
        self._record, self._plan, self._states, self._transport = record, plan, states, transport
        self._attempt = attempt = current_attempt(record)
        self._folder = home.job(record.name)
        self._index = JobIndex(home.index)
        self._begin = time.time()
        # Nobody may have looked for days.
        self._ended = ended_at(states, self._begin)
        self.job, self.compress = record.name, not plan.options.disable_output_compression
        self.retries, self.policies = plan.options.max_retry_attempts or 0, policies_of(plan.options)
        self.earlier, self.machines = attempt.failed, attempt.machine_names
        self.hourly_cost, self.events = plan.hourly_cost, self._folder.job_events

    def end(self) -> None:
        """End the attempt, unless another process has done it.

        The index says afterwards how the job ended, or which machines run the next attempt.
        """
        # A job that was submitted elsewhere has no folder here yet.
        self._folder.path.mkdir(mode=0o700, exist_ok=True)
        self._folder.logs.mkdir(exist_ok=True)
        # Between processes; the kernel frees it when this process dies, and the next one starts over.
        with locked(self._folder.path / "ending.lock"):
            # Read under the lock: the previous holder may have completed the job or started the next attempt.
            record = self._index.get(self.job)
            if not record.done and record.service == self._record.service:
                self._end()

    def _end(self) -> None:
        end_attempt(self)

    def judge(self) -> Verdict:
        return judge_job(self._states)

    @property
    def stopping(self) -> str:
        if self.is_asked_to_stop:
            return STOPPED
        return LIMITS[self._plan.limiting_option] if self._seconds_left < 1 else ""

    @property
    def is_asked_to_stop(self) -> bool:
        """Report whether somebody has asked for the job's end."""
        return self._index.get(self.job).status == STOPPING

    @property
    def _spent(self) -> float:
        """The seconds since the job began: its limits in time are those of all attempts together."""
        now = time.time()
        return now - (self._record.started or now)

    @property
    def _seconds_left(self) -> float:
        return self._plan.time_limit - self._spent

    def logs(self) -> dict[str, str]:
        # A machine that is lost by now must not prevent the retry.
        with contextlib.suppress(HerringboneError):
            self._for_each_host(self._fetch_log)
        begins = self._attempt.log_begins
        return {host: read_log(self._folder.logs, host, begins.get(host, 0)) for host in self.machines}

    def say(self, text: str) -> None:
        first = self._states[0].host
        say(str(self._folder.log(first)), f"[{first}] {text}")

    def release(self) -> None:
        # Each machine's controller has given back what its host had.
        pass

    def collect(self, verdict: Verdict) -> None:
        change_state(self._index, self.job, {"secondary_status": UPLOADING}, at=self._ended)
        # The output of a failed job may say why it failed.
        try:
            self.fetch_results()
        except (HerringboneError, OSError) as error:
            # The failure of the script stays the job's, so the log alone says where its output is.
            if verdict.failure is not None:
                with contextlib.suppress(OSError):
                    self.say(self.failure_of(error).message)
            raise

    def fetch_results(self) -> None:
        """Fetch what the hosts that are over left. Raises `HerringboneError` or `OSError`."""
        # With the logs: a completed job has not fetched them yet, and after a failure their fetch may have failed.
        self._for_each_host(self._fetch_results)
        if all(state.done for state in self._states):
            self._folder.fetched.touch()

    def output(self) -> Path:
        return output_folder(self._plan, self._folder)

    def bases(self) -> Bases:
        return [
            # A machine that was lost before it answered has no folder.
            (state.host, self._folder.host(state.host), None if state.row is None else str(self._base(state)))
            for state in self._states
        ]

    def _base(self, state: HostState) -> Path:
        """Return the base folder of a host's tree on its machine."""
        return self._remote(state).host(state.host)

    def _remote(self, state: HostState) -> JobFolder:
        assert state.row is not None
        return JobFolder(Path(state.row["work"], "jobs", self._attempt.name))

    def packing_is_ended(self) -> bool:
        return packing_is_ended(self._index.get(self.job))

    def send(self, model: Path | None) -> str | None:
        return None if model is None else send_packed(self._plan, model)

    def failure_of(self, error: Exception) -> Failure:
        # The folders stay on the machines, so the message tells the user where the results are.
        folders = ", ".join(
            f"{state.machine}:{self._remote(state).path}" for state in self._states if state.row is not None
        )
        return Failure(
            exception=type(error).__name__,
            exit_code=0,
            message=f"the results could not be fetched: {error}; nothing is lost: they are in {folders}, and "
            f"`herringbone repack {self.job}` fetches and packs them",
        )

    def finish(self, verdict: Verdict, model: Path | str | None) -> None:
        # Last: from now on other processes read the results.
        settle(self._index, self.job, last_columns(verdict, model, self._ended + time.time() - self._begin))

    @property
    def has_lost(self) -> bool:
        """Report whether a machine was given up, which may be back by now."""
        return any(state.lost for state in self._states)

    def _for_each_host(self, fetch: Callable[[HostState], None]) -> None:
        # Lost machines are left out: a copy from them would only run into its time limit.
        states = [state for state in self._states if state.done]
        # No executor of `concurrent.futures`: Python's exit, which waits for this thread, forbids those.
        with ThreadPool(_THREADS) as pool:
            calls = [pool.apply_async(fetch, (state,)) for state in states]
            for call in calls:
                call.wait()
        # Raised only now: one machine's failure does not prevent the copies from the others.
        for call in calls:
            call.get()

    def _fetch(self, state: HostState, remote: Path, local: Path, *, every_kind: bool = False) -> None:
        machine = self._attempt.machines[state.host]
        self._transport.fetch(machine, str(remote), local, every_kind=every_kind)

    def _fetch_results(self, state: HostState) -> None:
        """Fetch a host's log, model and output to the folders that a host on this machine would use."""
        self._fetch_log(state)
        if state.unsafe:
            raise HostError(f"{state.machine}: {printable(state.unsafe)}")
        for folder in state.folders:
            inside = Path(folder).relative_to(f"jobs/{self._attempt.name}")
            # `pack` follows no link, and names those that it leaves out.
            self._fetch(state, self._remote(state).path / inside, self._folder.path / inside, every_kind=True)

    def _fetch_log(self, state: HostState) -> None:
        """Fetch a host's log and events and write them behind those of earlier attempts."""
        # Into a folder of its own: `fetch` removes files that the machine does not have, such as other hosts' logs.
        fetched = self._folder.logs / f".{state.host}"
        self._fetch(state, self._remote(state).logs, fetched)
        for path in (self._folder.log(state.host), *self._folder.all_events([state.host])[1:]):
            with (
                contextlib.suppress(FileNotFoundError),
                (fetched / path.name).open("rb") as source,
                path.open("ab") as target,
            ):
                # It may have been fetched before: for a retry that did not start, or by a process that was killed.
                target.truncate(self._attempt.file_begins.get(path.name, 0))
                shutil.copyfileobj(source, target)
        shutil.rmtree(fetched, ignore_errors=True)


def start_completion(hosts: MachineHosts) -> Thread:
    """End an attempt in a thread of its own."""
    # Not a daemon thread, as that of a caller may be: Python would kill it at its exit, and leave the result half
    # fetched. The `herringbone` command finds it by its name, and waits for it.
    thread = Thread(target=hosts.end, name=f"{RESULTS}{hosts.job}", daemon=False)
    thread.start()
    return thread
