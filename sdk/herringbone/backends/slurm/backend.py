"""`slurm:PARTITION`: hosts are nodes of a Slurm cluster, and the job's controller is its batch script.

client      folder, controller config, script -> sbatch; then asks Slurm and reads the controller's report
controller  on the first node (`controller.slurm_steps`): one srun per host, log, max_run, stop, verdict, model
Slurm       queue, nodes, limits; restarts the job when a node goes down

Only this client writes the index: sqlite's locks often fail on file systems that machines share.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.detached import stop_grace
from herringbone.backends.lifecycle import claim, client_died, client_lives, poll_until_done, settle
from herringbone.backends.on_s3 import staged
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.process.tree import LOOPBACK, fill_host
from herringbone.backends.slurm import review
from herringbone.backends.slurm.commands import SlurmCommands, SlurmMissingError
from herringbone.backends.slurm.containers import Runtime, find_runtime, image_of
from herringbone.backends.slurm.controller_config import config_of
from herringbone.backends.slurm.script import (
    ScriptContext,
    batch_script,
    config_path,
    partition_of,
    sbatch_words,
    settings_of,
)
from herringbone.backends.slurm.shared import check_shared
from herringbone.backends.slurm.states import (
    SACCT,
    SQUEUE,
    SlurmJob,
    columns_of,
    is_final,
    job_id,
    parse_sacct,
    parse_squeue,
)
from herringbone.controller.record import read_report, read_stop_request, write_stop_request
from herringbone.records.home import Home, find_home
from herringbone.records.index import PENDING, UPLOADING, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.system.detached_process import search_path
from herringbone.system.polling import Pace
from herringbone_contract.errors import RequestError, SlurmError
from herringbone_contract.files import write_whole

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Answers
    from herringbone.protocols.host_access import HostAccess
    from herringbone_contract.events.requests import Request

# The log is a file and cheap to read; `ask_seconds` limits how often Slurm itself is asked.
_PACE = Pace(shortest=0.1, longest=1.0, slower=1.2)
_ASK_SECONDS = 2.0
_KILL_SECONDS = 20.0


def make_backend() -> SlurmBackend:
    """Return the backend for this user's jobs."""
    return SlurmBackend(find_home(), os.environ)


class SlurmJobs(OwnHostsBackend):
    """The verbs about jobs that Slurm has; see `SlurmBackend`."""

    name = "slurm"
    pace = _PACE

    def __init__(
        self,
        home: Home,
        environ: Mapping[str, str],
        *,
        connect: Callable[[str | None], SlurmCommands] | None = None,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        super().__init__(home)
        self._environ = {**environ, **search_path()}
        self._connect = connect or (lambda login: SlurmCommands(environ, login))
        self._ask_seconds = ask_seconds
        # `time.monotonic()` of the last question to Slurm, by job.
        self._asked: dict[str, float] = {}
        # The program that runs images, by login node.
        self._runtimes: dict[str | None, Runtime] = {}

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done or client_lives(record):
            return record
        report = self._report(name)
        stop_requested = read_stop_request(self._report_path(name)) is not None
        job = None
        # Slurm is asked only while its answer can still change the row.
        if not is_final(report, stop_requested=stop_requested):
            # Many waiting clients must not load slurmctld, which all users of the cluster share.
            if time.monotonic() - self._asked.get(name, -self._ask_seconds) < self._ask_seconds:
                return record
            try:
                job = self._look_up(record)
            except SlurmMissingError:
                raise
            except SlurmError:
                # slurmctld answers nothing for a while when it restarts. The job goes on, and its folder is read.
                return record
            self._asked[name] = time.monotonic()
            # The controller may have written the end and left Slurm's list since the report was read above.
            report = self._report(name)
        if record.client is not None:
            record = self._settle_submission(record, job)
        else:
            words = self._home.job(name).controller_words()
            columns = columns_of(
                report,
                job,
                record,
                stop_requested=stop_requested,
                last_words=words,
                now=time.time(),
                touched=_touched(self._report_path(name)),
            )
            record = settle(self._index, name, columns)
        if record.done:
            # The config contains the user's environment, and no controller will read it again.
            Path(config_path(self._home.job(name))).unlink(missing_ok=True)
        return record

    def ask(self, name: str, request: Request) -> Answers:
        # Imported here: only clients that look into a running job need it.
        from herringbone.access.requests import FolderAnswers

        slurm, job = self._slurm_job(self._index.get(name))
        # The controller is the batch script's own process. The script ignores this signal before the controller takes
        # it, and a pending job has no batch script.
        hosts, folder = self._host_names(name), self._home.job(name)
        return FolderAnswers(folder, hosts, request, lambda: _cancel(slurm, "--batch", "--signal=USR1", job))

    def access(self, name: str, host: str) -> HostAccess:
        from herringbone.backends.slurm.access import NodeWays
        from herringbone.protocols.host_access import CommandAccess

        slurm, job = self._slurm_job(self._index.get(name))
        nodes = dict(zip(self._host_names(name), self._report(name).get("nodes", ()), strict=False))
        if host not in nodes:
            raise RequestError(f"job {name}: Slurm has not started {host} yet; wait until the job trains")
        folder = self._home.job(name)
        ways = NodeWays(
            slurm,
            job,
            nodes[host],
            folder=str(folder.path),
            base=str(folder.host(host)),
            python=sys.executable,
            name=name,
        )
        return CommandAccess(ways)

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self.describe(name)
        if record.done:
            return
        write_stop_request(self._report_path(name), grace)
        slurm, job = self._slurm_job(record)
        # A pending job has no controller that could take a signal. A running one gets SIGTERM in its batch script.
        _cancel(slurm, "--state=PENDING", job)
        _cancel(slurm, "--batch", "--signal=TERM", job)
        # A controller that somebody has stopped takes no other signal.
        _cancel(slurm, "--batch", "--signal=CONT", job)
        # The next `describe` must ask Slurm at once, to see the effect of the stop.
        self._asked.pop(name, None)

    def kill(self, name: str) -> None:
        record = self.describe(name)
        if record.done:
            return
        write_stop_request(self._report_path(name), 0.0)
        slurm, job = self._slurm_job(record)
        if self._report(name).get("secondary_status") == UPLOADING:
            # The hosts are over. The controller removes what it has packed, and says where the model is.
            _cancel(slurm, "--batch", "--signal=INT", job)
            self._asked.pop(name, None)
            poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=self.pace.shortest)
            if self.describe(name).done:
                return
        # --full: the batch script as well as its steps. The second scancel takes a pending job out of the queue.
        _cancel(slurm, "--signal=KILL", "--full", job)
        _cancel(slurm, job)
        poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=self.pace.shortest)

    def _settle_submission(self, record: JobRecord, job: SlurmJob | None) -> JobRecord:
        """Settle a job whose client died while it submitted: Slurm has the job, or never got it."""
        if job is None:
            return settle(self._index, record.name, client_died("Slurm had the job"))
        login = json.loads(record.service or "{}").get("login")
        return settle(self._index, record.name, {"client": None, "service": _service(job.id, login)})

    def _look_up(self, record: JobRecord) -> SlurmJob | None:
        """Ask Slurm for a job: first the scheduler, which forgets ended jobs, then the accounting database."""
        service = json.loads(record.service or "{}")
        slurm = self._connect(service.get("login"))
        # The client died before it could store the id, so the job is looked up by its name and folder.
        if "job" not in service:
            return next(iter(self._all_of(record.name, slurm)), None)
        for words, parse in ((SQUEUE, parse_squeue), (SACCT, parse_sacct)):
            try:
                jobs = parse(slurm.ask(*words, f"--jobs={service['job']}"))
            except SlurmError as error:
                if not _means_unknown(error):
                    raise
                continue
            if jobs:
                return jobs[-1]
        return None

    def _all_of(self, name: str, slurm: SlurmCommands) -> list[SlurmJob]:
        """Return Slurm's jobs that started in this job's folder; a job of the same name elsewhere is not ours."""
        folder = str(self._home.job(name).path)
        return [job for job in parse_squeue(slurm.ask(*SQUEUE, "--me", f"--name={name}")) if job.folder == folder]

    def _slurm_job(self, record: JobRecord) -> tuple[SlurmCommands, str]:
        """Return Slurm's commands for this job, and the job's id there."""
        service = json.loads(record.service or "{}")
        slurm = self._connect(service.get("login"))
        if "job" not in service:
            raise SlurmError(
                f"job {record.name} is still being submitted; stop it in that process, or once Slurm has the job"
            )
        return slurm, service["job"]

    def _report_path(self, name: str) -> Path:
        return self._home.job(name).path / "report.json"

    def _report(self, name: str) -> dict[str, Any]:
        return read_report(self._report_path(name))


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class SlurmBackend(SlurmJobs):
    """Runs jobs below `home`, a folder that the cluster's nodes see under the same name, with this Python.

    `connect` returns Slurm's commands, on this machine or at a login node. Slurm is asked about a job at most once in
    `ask_seconds`; in between the job's folder answers.
    """

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        review.check(plan)
        words, script = self._request(plan)
        review.check_cluster(plan, self._slurm(plan), words, script)
        return review.unused(plan)

    def request(self, plan: JobPlan) -> dict[str, Any] | None:
        words, script = self._request(plan)
        return {"command": words, "script": script}

    def submit(self, plan: JobPlan) -> None:
        login = settings_of(plan).login
        slurm = self._slurm(plan)
        service = json.dumps({"login": login})
        with claim(plan, self.name, self._home, service=service, stopped_on_interrupt=False) as job:
            job.make_folder()
            self._home.job(plan.job_name).logs.mkdir()
            plan = staged(plan, self._home, self._index)
            try:
                self._prepare(plan)
                self._index.update(plan.job_name, client=None, service=_service(self._send(plan, slurm), login))
            except BaseException:
                # sbatch may have been cut short after Slurm took the job, so look for jobs of this folder.
                with contextlib.suppress(SlurmError):
                    for sent in self._all_of(plan.job_name, slurm):
                        _cancel(slurm, sent.id)
                raise

    def _request(self, plan: JobPlan) -> tuple[list[str], str]:
        folder = self._home.job(plan.job_name)
        context = ScriptContext(folder, sys.executable, self._environ)
        return sbatch_words(folder), batch_script(plan, context, grace=stop_grace(), runtime=self._runtime(plan))

    def _runtime(self, plan: JobPlan) -> Runtime | None:
        """Return the program that runs the job's image on the cluster, None for a job without an image."""
        settings = settings_of(plan)
        if image_of(plan) is None:
            return None
        if settings.container_runtime is not None:
            return settings.container_runtime
        # Each question to the login node takes a while, and `review` and `submit` both need the answer.
        if settings.login not in self._runtimes:
            self._runtimes[settings.login] = find_runtime(self._slurm(plan))
        return self._runtimes[settings.login]

    def _prepare(self, plan: JobPlan) -> None:
        """Write the job's folder: the hosts' trees and the controller's config."""
        folder = self._home.job(plan.job_name)
        JobEvents(folder.job_events).state(PENDING)
        interface = LOOPBACK if len(plan.hosts) == 1 else ""
        for host in plan.hosts:
            fill_host(plan, host, folder, exclude=self._home.path, interface=interface)
        report = self._report_path(plan.job_name)
        config = config_of(plan, self._home, self._environ, report=report, runtime=self._runtime(plan))
        # Its mode is 0600 from the first byte on: others must never be able to read it.
        write_whole(config_path(folder), json.dumps(config).encode())

    def _send(self, plan: JobPlan, slurm: SlurmCommands) -> str:
        """Hand the job to Slurm and return its id there."""
        words, script = self._request(plan)
        settings = settings_of(plan)
        selection = [f"--partition={partition_of(plan)}"]
        selection += [f"--{name}={value}" for name in ("account", "qos") if (value := getattr(settings, name))]
        # The job's folder exists by now, so a node can be asked whether it sees it.
        check_shared(
            self._home.job(plan.job_name).path,
            slurm,
            partition=selection,
            this_host=socket.gethostname(),
            mounts=Path("/proc/mounts").read_text(),
        )
        return job_id(slurm.ask(*words, stdin=script))

    def _slurm(self, plan: JobPlan) -> SlurmCommands:
        return self._connect(settings_of(plan).login)


def _cancel(slurm: SlurmCommands, *words: str) -> None:
    """Run scancel; a job that is over, or not in the state that the words name, is no error."""
    try:
        slurm.ask("scancel", *words)
    except SlurmError as error:
        if "Invalid job id" not in str(error) and "already complet" not in str(error):
            raise


def _service(job: str, login: str | None) -> str:
    return json.dumps({"job": job, "login": login})


def _means_unknown(error: SlurmError) -> bool:
    text = str(error)
    return "Invalid job id" in text or "accounting storage is disabled" in text
