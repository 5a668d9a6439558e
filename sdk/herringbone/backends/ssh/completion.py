"""Complete a job on this machine: fetch what its hosts left, judge, pack, and write the result into the index.

    all hosts over
         |  judge_job
         |-- failed --> fetch the logs --> Retry.start --> another attempt, and the job goes on
         v
    Uploading: fetch logs, models and outputs --> pack --> the row says how the job ended

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
from herringbone.backends.ssh.job_state import HostState, ended_at, judge_job
from herringbone.backends.ssh.running_jobs import current_attempt
from herringbone.controller.artifacts import pack_model, pack_output
from herringbone.controller.log_files import LogFile
from herringbone.controller.packing import PackingStoppedError, PackingWatch, not_packed
from herringbone.controller.verdict import Verdict
from herringbone.records.home import JobFolder
from herringbone.records.index import COMPLETED, FAILED, STOPPED, UPLOADING, JobIndex, JobRecord
from herringbone.records.short_names import RESULTS
from herringbone_contract.errors import HerringboneError, HostError
from herringbone_contract.failure import Failure
from herringbone_contract.files import locked
from herringbone_contract.masking import printable
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    from herringbone.backends.ssh.follow import HostMonitor, JobMonitor
    from herringbone.backends.ssh.inventory import Machine
    from herringbone.backends.ssh.retry import Retry
    from herringbone.backends.ssh.transport.protocol import Transport
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
    verdict = judge_job(states)
    return replace(
        record,
        status=verdict.status,
        secondary_status=verdict.secondary_status,
        ended=ended_at(states, time.time()),
        failure=None if verdict.failure is None else verdict.failure.to_json(),
    )


def base_on_machine(host: HostMonitor, attempt: str) -> str | None:
    """Return the base folder of a host's tree on its machine; None for a machine that was lost before it answered."""
    if host.row is None:
        return None
    return str(JobFolder(Path(host.row["work"], "jobs", attempt)).host(host.host))


class Completion:
    """Completes one job in a thread that starts at once.

    It is finished when the index says how the job ended, or which machines run the next attempt. The thread is the only
    one that uses the members; the monitor is not changed any more, because the job is over.
    """

    def __init__(
        self,
        record: JobRecord,
        plan: JobPlan,
        monitor: JobMonitor,
        transport: Transport[Machine],
        home: Home,
        *,
        retry: Retry,
    ) -> None:
        self._record, self._plan, self._monitor, self._transport = record, plan, monitor, transport
        self._retry = retry
        self._attempt = current_attempt(record)
        self._folder = home.job(record.name)
        self._index = JobIndex(home.index)
        # Not a daemon thread, as that of a caller may be: Python would kill it at its exit, and leave the result half
        # fetched. The `herringbone` command finds it by its name, and waits for it.
        self._thread = Thread(target=self._run, name=f"{RESULTS}{record.name}", daemon=False)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Return when the job is completed, or after `seconds`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        # A job that was submitted elsewhere has no folder here yet.
        self._folder.path.mkdir(mode=0o700, exist_ok=True)
        self._folder.logs.mkdir(exist_ok=True)
        # Between processes; the kernel frees it when this process dies, and the next one starts over.
        with locked(self._folder.path / "ending.lock"):
            # Read under the lock: the previous holder may have completed the job or started the next attempt.
            record = self._index.get(self._record.name)
            if not record.done and record.service == self._record.service:
                self._complete()

    def _complete(self) -> None:
        begin = time.time()
        verdict, model = judge_job(self._monitor.states), None
        # Nobody may have looked for days.
        ended = ended_at(self._monitor.states, begin)
        if verdict.failure is not None:
            # The retry policies search the logs. A machine that is lost by now must not prevent the retry.
            with contextlib.suppress(HerringboneError):
                self._for_each_host(self._fetch_log)
            try:
                if self._retry.start(verdict):
                    return
            except (HerringboneError, OSError) as error:
                why = f"{verdict.failure.message}; the job could not be restarted: {error}".removeprefix("; ")
                verdict = replace(verdict, failure=verdict.failure._replace(message=why))
        change_state(self._index, self._record.name, {"secondary_status": UPLOADING}, at=ended)
        try:
            # With the logs: a completed job has not fetched them yet, and after a failure their fetch may have failed.
            self._for_each_host(self._fetch_results)
            if (packed := self._pack(with_model=verdict.failure is None)) is not None:
                model = send_packed(self._plan, packed)
        except PackingStoppedError:
            if verdict.status == COMPLETED:
                verdict = Verdict(STOPPED, STOPPED)
        except (HerringboneError, OSError) as error:
            # A job that failed by itself keeps that reason: it matters more than a lost output.
            if verdict.failure is None:
                verdict = Verdict(FAILED, FAILED, self._fetch_failure(error))
        # Last: from now on other processes read the results.
        settle(
            self._index,
            self._record.name,
            {
                "status": verdict.status,
                "secondary_status": verdict.secondary_status,
                "ended": ended + time.time() - begin,
                "failure": None if verdict.failure is None else verdict.failure.to_json(),
                "model": None if model is None else str(model),
            },
        )

    def _for_each_host(self, fetch: Callable[[HostMonitor], None]) -> None:
        # Lost machines are left out: a copy from them would only run into its time limit.
        hosts = [host for host in self._monitor.hosts.values() if host.state.done]
        # No executor of `concurrent.futures`: Python's exit, which waits for this thread, forbids those.
        with ThreadPool(_THREADS) as pool:
            calls = [pool.apply_async(fetch, (host,)) for host in hosts]
            for call in calls:
                call.wait()
        # Raised only now: one machine's failure does not prevent the copies from the others.
        for call in calls:
            call.get()

    def _fetch_results(self, host: HostMonitor) -> None:
        """Fetch a host's log, model and output to the folders that a host on this machine would use."""
        assert host.row is not None
        self._fetch_log(host)
        if host.unsafe_result:
            raise HostError(f"{host.machine.name}: {printable(host.unsafe_result)}")
        for folder in host.result_folders:
            inside = Path(folder).relative_to(f"jobs/{self._attempt.name}")
            remote = f"{host.row['work']}/{folder}"
            # `pack` follows no link, and names those that it leaves out.
            self._transport.fetch(host.machine, remote, self._folder.path / inside, every_kind=True)

    def _fetch_log(self, host: HostMonitor) -> None:
        """Fetch a host's log and events and write them behind those of earlier attempts."""
        assert host.row is not None
        # Into a folder of its own: `fetch` removes files that the machine does not have, such as other hosts' logs.
        fetched = self._folder.logs / f".{host.host}"
        self._transport.fetch(host.machine, f"{host.row['work']}/jobs/{self._attempt.name}/logs", fetched)
        for path in (self._folder.log(host.host), *self._folder.all_events([host.host])[1:]):
            with (
                contextlib.suppress(FileNotFoundError),
                (fetched / path.name).open("rb") as source,
                path.open("ab") as target,
            ):
                # It may have been fetched before: for a retry that did not start, or by a process that was killed.
                target.truncate(self._attempt.file_begins.get(path.name, 0))
                shutil.copyfileobj(source, target)
        shutil.rmtree(fetched, ignore_errors=True)

    def _pack(self, *, with_model: bool) -> Path | None:
        """Pack output and model; raises `PackingStoppedError` when the user ends that, from this process or another."""
        output = output_folder(self._plan, self._folder)
        compress = not self._plan.options.disable_output_compression
        hosts = [
            (name, self._folder.host(name), base_on_machine(host, self._attempt.name))
            for name, host in self._monitor.hosts.items()
        ]
        watch = PackingWatch(is_ended=lambda: packing_is_ended(self._index.get(self._record.name)), say=self._say)
        try:
            pack_output(hosts, output, compress=compress, say=self._say, step=watch)
            # The output of a failed job may say why it failed; its model is not complete.
            return pack_model(hosts, output, compress=compress, say=self._say, step=watch) if with_model else None
        except PackingStoppedError:
            if with_model:
                folders = ", ".join(str(Paths(base).model) for _, base, _ in hosts)
                self._say(not_packed(self._record.name, folders))
            raise

    def _say(self, text: str) -> None:
        """Write a line into the first host's log."""
        host = next(iter(self._monitor.hosts))
        log = LogFile(str(self._folder.log(host)))
        log.say(f"[{host}] packing: {text}", time.time())
        log.close(time.time())

    def _fetch_failure(self, error: Exception) -> Failure:
        # The folders stay on the machines, so the message tells the user where the results are.
        folders = ", ".join(
            f"{host.machine.name}:{host.row['work']}/jobs/{self._attempt.name}"
            for host in self._monitor.hosts.values()
            if host.row is not None
        )
        return Failure(
            exception=type(error).__name__,
            exit_code=0,
            message=f"the job completed, but its results could not be fetched: {error}; they are in {folders}",
        )
