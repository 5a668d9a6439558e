"""`slurm:PARTITION`: hosts are nodes of a Slurm cluster, and the job's controller is its batch script.

client    folder, order, script -> sbatch; then asks Slurm and reads what the controller writes into the job's folder
controller  on the first node (herringbone.controller.slurm_steps): one srun a host, log, max_run, stop, verdict, model
Slurm     queue, nodes, limits; starts the job again when a node goes down
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.detached import search_path, stop_grace
from herringbone.backends.process.tree import LOOPBACK, fill_host
from herringbone.backends.slurm import review
from herringbone.backends.slurm.commands import SlurmCommands, SlurmMissingError
from herringbone.backends.slurm.containers import Runtime, find_runtime, image_of
from herringbone.backends.slurm.controller_config import order_of
from herringbone.backends.slurm.script import (
    Place,
    batch_script,
    order_path,
    partition_of,
    sbatch_words,
    settings_of,
)
from herringbone.backends.slurm.shared import check_shared
from herringbone.backends.slurm.states import SACCT, SQUEUE, SlurmJob, columns_of, parse_sacct, parse_squeue, sure
from herringbone.controller.record import read_report, stop_wish, wish_path
from herringbone.jobs.home import Home, find_home
from herringbone.jobs.index import JobIndex, JobRecord
from herringbone.jobs.interrupt import OnInterrupt
from herringbone.jobs.logs import FileLogs
from herringbone.jobs.polling import Pace
from herringbone.processes import identity, is_alive
from herringbone_contract.errors import InputError, JobNameError, LaunchError, SlurmError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.planning.plan import JobPlan

# The log is a file; Slurm itself is asked less often.
_PACE = Pace(shortest=0.1, longest=1.0, slower=1.2)
_ASK_SECONDS = 2.0
_KILL_SECONDS = 20.0
_LAST_WORDS_CHARS = 1_000


def make_backend() -> SlurmBackend:
    """Return the backend for this user's jobs."""
    return SlurmBackend(find_home(), os.environ)


class SlurmBackend:
    """Runs jobs below `home`, a folder that the cluster's nodes see under the same name, with this Python.

    `connect` gives Slurm's commands, on this machine or at a login node. Slurm is asked for a job at most once in
    `ask_seconds`; in between its folder answers.
    """

    name = "slurm"
    pace = _PACE
    on_interrupt: OnInterrupt = "stop"

    def __init__(
        self,
        home: Home,
        environ: Mapping[str, str],
        *,
        connect: Callable[[str | None], SlurmCommands] | None = None,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        self._home = home
        self._environ = {**environ, **search_path()}
        self._connect = connect or (lambda login: SlurmCommands(environ, login))
        self._ask_seconds = ask_seconds
        self._index = JobIndex(home.index)
        self._asked: dict[str, float] = {}
        self._runtimes: dict[str | None, Runtime] = {}

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        review.check(plan)
        words, script = self._request(plan)
        review.check_cluster(plan, self._slurm(plan), words, script)
        return review.unused(plan)

    def request(self, plan: JobPlan) -> dict[str, Any] | None:
        words, script = self._request(plan)
        return {"command": words, "script": script}

    def submit(self, plan: JobPlan) -> None:
        self._home.make()
        name = plan.job_name
        record = JobRecord(
            name=name,
            backend=self.name,
            plan=json.dumps(plan.to_dict()),
            created=time.time(),
            client=identity(os.getpid()),
            service=json.dumps({"login": settings_of(plan).login}),
        )
        self._index.add(record)
        slurm = self._slurm(plan)
        try:
            self._prepare(plan)
            job = self._send(plan, slurm)
            self._index.update(name, client=None, service=_service(job, settings_of(plan).login))
        except BaseException as error:
            self._take_back(plan, slurm, keep_folder=isinstance(error, JobNameError))
            if isinstance(error, OSError):
                folder = self._home.job(name).path
                raise LaunchError(f"job {name} could not be prepared in {folder}: {error}") from error
            raise

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done or (record.client is not None and is_alive(record.client)):
            return record
        report = self._report(name)
        asked = stop_wish(self._report_path(name)) is not None
        job = None
        if not sure(report, asked=asked):
            if time.monotonic() - self._asked.get(name, -self._ask_seconds) < self._ask_seconds:
                return record
            try:
                job = self._look_up(record)
            except SlurmMissingError:
                raise
            except SlurmError:
                # A controller that restarts says nothing for a while; the job goes on, and its folder is read.
                return record
            self._asked[name] = time.monotonic()
            # It may have written its last word since, and then left Slurm's list.
            report = self._report(name)
        if record.client is not None:
            self._settle(record, job)
        else:
            words = self._last_words(name)
            columns = columns_of(report, job, record, asked=asked, last_words=words, now=time.time())
            self._index.update(name, unless_done=True, **columns)
        record = self._index.get(name)
        if record.done:
            # It holds the user's environment, and nobody will read it any more.
            Path(order_path(self._home.job(name))).unlink(missing_ok=True)
        return record

    def logs(self, name: str) -> FileLogs:
        hosts = self._index.get(name).plan_dict["hosts"]
        return FileLogs(self._home.job(name).log(host["name"]) for host in hosts)

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self.describe(name)
        if record.done:
            return
        self._wish(name, grace)
        slurm, job = self._found(record)
        # While it waits there is nobody to tell; from then on, its controller.
        _cancel(slurm, "--state=PENDING", job)
        _cancel(slurm, "--batch", "--signal=TERM", job)
        self._asked.pop(name, None)

    def kill(self, name: str) -> None:
        record = self.describe(name)
        if record.done:
            return
        self._wish(name, 0.0)
        slurm, job = self._found(record)
        _cancel(slurm, "--signal=KILL", "--full", job)
        _cancel(slurm, job)
        deadline = time.monotonic() + _KILL_SECONDS
        while not self.describe(name).done and time.monotonic() < deadline:
            time.sleep(self.pace.shortest)

    def bill(self, name: str) -> str | None:  # noqa: ARG002 - clusters keep accounts of their own
        return None

    def fetch_model(self, name: str, into: Path) -> Path:  # noqa: ARG002 - it lies here already
        record = self.describe(name)
        if record.model is None:
            raise InputError(f"job {name} is {record.status} and has no model: it packs one at its end")
        return Path(record.model)

    def _request(self, plan: JobPlan) -> tuple[list[str], str]:
        folder = self._home.job(plan.job_name)
        place = Place(folder, sys.executable, self._environ)
        return sbatch_words(folder), batch_script(plan, place, grace=stop_grace(), runtime=self._runtime(plan))

    def _runtime(self, plan: JobPlan) -> Runtime | None:
        """Return what runs the job's image on the cluster, None where it names none."""
        settings = settings_of(plan)
        if image_of(plan) is None:
            return None
        if settings.container_runtime is not None:
            return settings.container_runtime
        if settings.login not in self._runtimes:
            self._runtimes[settings.login] = find_runtime(self._slurm(plan))
        return self._runtimes[settings.login]

    def _prepare(self, plan: JobPlan) -> None:
        folder = self._home.job(plan.job_name)
        try:
            folder.path.mkdir(mode=0o700)
        except FileExistsError:
            raise JobNameError(
                f"job name {plan.job_name!r}: its folder {folder.path} is there already, of a job that the index has "
                "forgotten; choose another name, or move the folder away"
            ) from None
        folder.logs.mkdir()
        interface = LOOPBACK if len(plan.hosts) == 1 else ""
        for host in plan.hosts:
            fill_host(plan, host, folder, but_not=self._home.path, interface=interface)
        report = self._report_path(plan.job_name)
        order = order_of(plan, self._home, self._environ, report=report, runtime=self._runtime(plan))
        descriptor = os.open(order_path(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(order, file)

    def _send(self, plan: JobPlan, slurm: SlurmCommands) -> str:
        words, script = self._request(plan)
        settings = settings_of(plan)
        chosen = [f"--partition={partition_of(plan)}"]
        chosen += [f"--{name}={value}" for name in ("account", "qos") if (value := getattr(settings, name))]
        check_shared(
            self._home.job(plan.job_name).path,
            slurm,
            partition=chosen,
            this_host=socket.gethostname(),
            mounts=Path("/proc/mounts").read_text(),
        )
        # On a cluster of several, the answer names it: "123;name".
        return slurm.ask(*words, stdin=script).strip().partition(";")[0]

    def _take_back(self, plan: JobPlan, slurm: SlurmCommands, *, keep_folder: bool) -> None:
        """Leave nothing of a job that could not be submitted, or not known to be: sbatch may be cut short."""
        name = plan.job_name
        folder = self._home.job(name).path
        if keep_folder:
            self._index.remove(name)
            return
        with contextlib.suppress(SlurmError):
            for job in self._all_of(name, slurm):
                _cancel(slurm, job.id)
        self._index.remove(name)
        shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, record: JobRecord, job: SlurmJob | None) -> None:
        """Say what became of a job whose client died while it submitted it."""
        if job is not None:
            login = json.loads(record.service or "{}").get("login")
            self._index.update(record.name, unless_done=True, client=None, service=_service(job.id, login))
            return
        failure = Failure(exit_code=0, message="the Python that was submitting it died before Slurm had the job")
        self._index.fail(record.name, failure)

    def _look_up(self, record: JobRecord) -> SlurmJob | None:
        """Ask Slurm for a job: first who schedules, then who keeps accounts."""
        place = json.loads(record.service or "{}")
        slurm = self._connect(place.get("login"))
        if "job" not in place:
            return next(iter(self._all_of(record.name, slurm)), None)
        for words, parse in ((SQUEUE, parse_squeue), (SACCT, parse_sacct)):
            try:
                found = parse(slurm.ask(*words, f"--jobs={place['job']}"))
            except SlurmError as error:
                if not _means_unknown(error):
                    raise
                continue
            if found:
                return found[-1]
        return None

    def _all_of(self, name: str, slurm: SlurmCommands) -> list[SlurmJob]:
        """Return Slurm's jobs that began in this job's folder: its own, whatever others are called."""
        folder = str(self._home.job(name).path)
        return [job for job in parse_squeue(slurm.ask(*SQUEUE, "--me", f"--name={name}")) if job.folder == folder]

    def _found(self, record: JobRecord) -> tuple[SlurmCommands, str]:
        place = json.loads(record.service or "{}")
        slurm = self._connect(place.get("login"))
        if "job" not in place:
            raise SlurmError(f"job {record.name} is still being submitted; stop it there, or once Slurm has it")
        return slurm, place["job"]

    def _wish(self, name: str, grace: float | None) -> None:
        path = wish_path(self._report_path(name))
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"grace": grace}))
        partial.replace(path)

    def _report_path(self, name: str) -> Path:
        return self._home.job(name).path / "report.json"

    def _report(self, name: str) -> dict[str, Any]:
        return read_report(self._report_path(name))

    def _last_words(self, name: str) -> str:
        try:
            return self._home.job(name).controller_log.read_text(errors="replace").strip()[-_LAST_WORDS_CHARS:]
        except OSError:
            return ""

    def _slurm(self, plan: JobPlan) -> SlurmCommands:
        return self._connect(settings_of(plan).login)


def _cancel(slurm: SlurmCommands, *words: str) -> None:
    """Have a job end, or hear a signal; one that is over, or not in that state, is no error."""
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
