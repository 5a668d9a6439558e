"""Base class for backends that run a detached controller per job: start it, hand it the job, read the result.

    client                                              controller (a session of its own)
    claim the name (backends/lifecycle.py)
    open descriptors, start the controller  ---------->  imports its modules, waits on standard input
    write the job's folder, start containers
    write the config to its standard input  ---------->  runs the job, writes the row
    return                                               ends with the job

The client prepares the job while the controller's Python starts, so neither waits for the other. See
docs/understand/lives.md for the processes and the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.lifecycle import (
    WATCHER_DIED,
    claim,
    client_died,
    poll_until_done,
    process_lives,
    settle,
    settle_end,
    unseen,
)
from herringbone.backends.on_s3 import pipes_config, s3_config, staged
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.review.checks import output_folder
from herringbone.controller.retry import policies_of
from herringbone.plan.budget import spent_text
from herringbone.plan.replans import replans
from herringbone.plan.shown import RESIZED
from herringbone.records.end_file import EndFile
from herringbone.records.home import Home
from herringbone.records.index import PENDING, STARTING, JobRecord
from herringbone.records.job_events import JobEvents
from herringbone.slots.pending import (
    enter_line,
    is_granted,
    leave_to_waiter,
    left_on_error,
    signal_waiter,
    waiter_config,
    waiter_died,
)
from herringbone.slots.probe import NvidiaSmi
from herringbone.slots.ticket import Wants
from herringbone.system.descriptors import CONTROLLER_SIGNALS, REQUEST_SIGNAL
from herringbone.system.detached_process import blocked, hand_over, start_detached
from herringbone.system.polling import Pace
from herringbone.system.processes import identity, is_alive, pid_of
from herringbone_contract.constants import DEFAULT_STOP_GRACE_SECONDS, HostVariable
from herringbone_contract.errors import LaunchError, OptionError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.protocols.backend import Answers
    from herringbone.protocols.controller_config import BudgetConfig, ControllerConfig, PipesConfig
    from herringbone.protocols.host_access import HostAccess
    from herringbone.slots.claim import Claim
    from herringbone.slots.probe import Probe
    from herringbone_contract.events.requests import Request

# The supervisors of the other hosts notice a failed host at once; this limit is for those that do not.
PATIENCE_SECONDS = 5.0
_WAITER = "herringbone.backends.waiter"
CONTROLLER = (sys.executable, "-m", "herringbone.controller")
# Reading a row and a log takes 0.15 ms, so a caller that waits may look 200 times a second.
_PACE = Pace(shortest=0.005, longest=0.05, slower=1.02)
_KILL_SECONDS = 15.0
_POLL_SECONDS = 0.01
_TEMPORARY_FOLDER_CHARS = 60
_EXIT_SECONDS, _EXIT_POLL_SECONDS = 0.1, 0.001
# The controllers that this process has started and not yet collected.
_children: set[str] = set()


class DetachedJobs(OwnHostsBackend):
    """The verbs about jobs whose controllers are processes of this machine."""

    pace = _PACE

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        process = record.controller or record.client
        if record.done:
            _reap(record.controller)
            # Of a job that waited in line, this was its waiter.
            _reap(record.client)
            return record
        # The job is over, and its controller could not write so: the index was locked, or its disk full.
        if (columns := EndFile(self._home.job(name).end).read()) is not None:
            return settle_end(self._index, record, columns)
        if process_lives(record, process):
            return record
        # The controller may have written the job's end and exited between reading the row and looking at the process.
        record = self._index.get(name)
        return record if record.done else self._mark_as_lost(record)

    def ask(self, name: str, request: Request) -> Answers:
        # Imported here: only clients that look into a running job need it.
        from herringbone.access.requests import FolderAnswers

        hosts, folder = self._host_names(name), self._home.job(name)
        return FolderAnswers(folder, hosts, request, lambda: self._signal(name, REQUEST_SIGNAL))

    def stop(self, name: str, grace: float | None = None) -> None:
        if grace is not None:
            self._index.update(name, unless_done=True, stop_grace=grace)
        # The controller reads the grace from the row when the signal arrives, so the row is written first.
        self._signal(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        # SIGINT kills, as a second Ctrl-C would; SIGTERM is the request to stop.
        self._signal(name, signal.SIGINT)
        poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=_POLL_SECONDS)

    def _check_here(self, record: JobRecord) -> None:
        """Raise `LaunchError` for a job whose processes cannot be seen from here."""
        if elsewhere := unseen(record):
            # Its pids belong to other processes here, or to none.
            raise LaunchError(elsewhere)

    def _signal(self, name: str, number: int) -> None:
        record = self.describe(name)
        self._check_here(record)
        # Between `claim` and the start of the controller, a job has a name and no process to signal.
        while not record.done and record.controller is None:
            # A waiter leaves the line, unless its job is being started; the controller gets the signal then. A request
            # to a job that has no ranks yet must not end it.
            if number in CONTROLLER_SIGNALS:
                signal_waiter(record)
            time.sleep(_POLL_SECONDS)
            # `describe` also notices a client that died here, so this loop ends.
            record = self.describe(name)
        if not record.done and record.controller is not None:
            # `describe` has compared the start time of the process, so the pid is not that of an unrelated process.
            with suppress(ProcessLookupError):
                os.kill(pid_of(record.controller), number)
                # A controller that SIGSTOP has paused takes no signal before it continues. A running one ignores this.
                os.kill(pid_of(record.controller), signal.SIGCONT)

    def _last_words(self, name: str) -> str:
        return self._home.job(name).controller_words() or "its log is empty"

    def _mark_as_lost(self, record: JobRecord) -> JobRecord:
        """Write the failure of a job whose client or controller was killed; its supervisors stop by themselves."""
        # Without a controller it was the client that died.
        if record.controller is None:
            failure = waiter_died() if record.secondary_status == PENDING else client_died("the job had a controller")
        else:
            failure = Failure(message=f"{WATCHER_DIED}: {self._last_words(record.name)}")
        settled = settle(self._index, record.name, failure)
        if record.run_folder is not None:
            shutil.rmtree(record.run_folder, ignore_errors=True)
        return settled


class DetachedBackend(DetachedJobs):
    """Runs jobs below `home`; `controller` is the command that starts a controller.

    `patience` is how long, in seconds, hosts may outlive the first failed host before they get SIGTERM.
    """

    def __init__(
        self, home: Home, *, controller: tuple[str, ...] = CONTROLLER, patience: float = PATIENCE_SECONDS
    ) -> None:
        super().__init__(home)
        self._controller = controller
        self._patience = patience
        self._probe: Probe = NvidiaSmi()

    @abstractmethod
    def review(self, plan: JobPlan) -> tuple[str, ...]:
        """See `Backend.review`."""

    @abstractmethod
    def access(self, name: str, host: str) -> HostAccess:
        """See `Backend.access`."""

    def _start(self, plan: JobPlan, config: ControllerConfig, inherited: Sequence[int], controller: str) -> None:
        """Prepare the job, start what the controller does not start itself, and describe the hosts in `config`.

        `inherited` are the descriptors of `_open_inherited`, `controller` is the controller's identity. An error must
        leave nothing behind but the job's folder.
        """
        raise NotImplementedError

    def _hosts(self, plan: JobPlan) -> Sequence[HostPlan]:
        """Return the hosts that this backend runs here."""
        return plan.hosts

    def _fill(self, plan: JobPlan) -> None:
        """Write what the hosts will read into the job's folder. It is their code as it is at the submission."""

    def _wants(self, plan: JobPlan) -> Wants:  # noqa: ARG002 - most backends claim nothing
        """Return the devices of this machine that no other job may use while this one runs."""
        return Wants()

    def _enter(self, plan: JobPlan) -> Claim | None:
        """Enter the line of this machine; None for a job that claims nothing."""
        return enter_line(plan, self._wants(plan), self._home, self._probe)

    def are_free(self, devices: Sequence[str]) -> bool:  # noqa: ARG002 - processes keep the claim until they end
        """Report whether granted devices can be used now: hosts of a job may outlive its controller and its claim."""
        return True

    def _open_inherited(self, plan: JobPlan) -> list[int]:  # noqa: ARG002 - most backends open nothing
        """Open the descriptors that the controller inherits; they keep their numbers in the controller."""
        return []

    def submit(self, plan: JobPlan) -> None:
        with claim(plan, self.name, self._home) as job, ExitStack() as stack:
            job.make_folder()
            folder = self._home.job(plan.job_name)
            folder.logs.mkdir()
            plan = staged(plan, self._home, self._index)
            slot = self._enter(plan)
            stack.enter_context(left_on_error(slot))
            if slot is None or is_granted(plan, slot):
                JobEvents(folder.job_events).state(STARTING)
                self.launch(plan, slot)
                return
            # The code is copied now: a job that waits trains the code as it was at its submission.
            self._fill(plan)
            config = waiter_config(plan, self.name, slot)
            leave_to_waiter(_WAITER, config, self._home, stop=self.stop, started=_children.add, slot=slot)

    def launch(self, plan: JobPlan, slot: Claim | None, *, filled: bool = False) -> None:
        """Start the controller and the hosts of a job whose row exists; `filled`: its folder has the hosts' files.

        `slot` are the devices that it was granted; None for a job that claims none. The caller undoes the row after an
        error, and frees the devices.
        """
        with ExitStack() as descriptors:
            inherited = self._open_inherited(plan)
            # After this block the controller alone holds them: their other ends then notice when it dies.
            for descriptor in inherited:
                descriptors.callback(os.close, descriptor)
            handed_on = inherited if slot is None else [*inherited, slot.descriptor]
            controller = self._start_controller(plan.job_name, handed_on)
            try:
                if not filled:
                    self._fill(plan)
                self._prepare(plan, controller, inherited, slot)
            except BaseException:
                controller.kill()
                controller.communicate()
                raise
        # The controller outlives this Python on purpose, which Popen would report as a leak; `_reap` reaps it.
        controller.returncode = 0

    def _prepare(
        self, plan: JobPlan, controller: subprocess.Popen[bytes], inherited: Sequence[int], slot: Claim | None
    ) -> None:
        """Start the job's hosts and hand the config over; remove the run folder after an error."""
        controller_identity = identity(controller.pid)
        run_folder = _new_run_folder()
        # Into the index before it exists: if this process is killed next, whoever settles the job removes it.
        columns: dict[str, Any] = {"controller": controller_identity, "run_folder": str(run_folder)}
        if slot is not None:
            # Before the hand-over: afterwards the controller and those who describe the job write facts, too.
            columns["facts"] = json.dumps({"Slots": slot.facts})
        self._index.update(plan.job_name, **columns)
        _children.add(str(controller_identity))
        try:
            run_folder.mkdir(mode=0o700)
            config = self._config(plan, str(run_folder))
            config["claim"] = None if slot is None else slot.config
            self._start(plan, config, inherited, str(controller_identity))
            self._hand_over(controller, config)
            if slot is not None:
                slot.is_handed_over = True
        except BaseException:
            shutil.rmtree(run_folder, ignore_errors=True)
            raise

    def _start_controller(self, name: str, inherited: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start the controller, whose Python starts while the client writes the job's folder."""
        folder = self._home.job(name)
        with folder.controller_log.open("wb") as log, blocked(CONTROLLER_SIGNALS):
            return start_detached(
                [*self._controller, name],
                log=log,
                folder=folder.path,
                inherited=inherited,
            )

    def _hand_over(self, controller: subprocess.Popen[bytes], config: ControllerConfig) -> None:
        try:
            hand_over(controller, config)
        # The controller died before it had read the config, and its log says why.
        except BrokenPipeError:
            raise LaunchError(f"the job's controller did not start: {self._last_words(config['job'])}") from None

    def _config(self, plan: JobPlan, run_folder: str) -> ControllerConfig:
        config = base_config(plan, self._home)
        config["index"], config["run_folder"], config["patience"] = str(self._home.index), run_folder, self._patience
        # A script could make a link there, and send the results elsewhere.
        config["real_output"] = os.path.realpath(str(config["output"]))
        config["s3"], config["pipes"] = s3_config(plan, self._home), self._pipes(plan)
        # Over `ssh:` this controller has one host, and those who choose machines decide how many there are.
        config["sizes"] = [len(plan.hosts), *plan.fewer_hosts] if plan.backend in RESIZED and plan.fewer_hosts else []
        return config

    def _pipes(self, plan: JobPlan) -> PipesConfig | None:
        """Return the FIFOs that the job's controller has filled."""
        return pipes_config(plan, self._home, plan.hosts)


def base_config(plan: JobPlan, home: Home) -> ControllerConfig:
    """Return what the configs of all controllers have in common: one without hosts to start, index or report."""
    folder = home.job(plan.job_name)
    return {
        "job": plan.job_name,
        "index": None,
        "report": None,
        "logs": str(folder.logs),
        "hosts": [{"name": host.name, "base": str(folder.host(host.name))} for host in plan.hosts],
        "processes": None,
        "containers": None,
        "steps": None,
        "run_folder": "",
        "retries": plan.options.max_retry_attempts or 0,
        "policies": policies_of(plan.options)._asdict(),
        "sizes": [],
        "replans": [{"sets": one.sets, "removes": one.removes, "text": one.text} for one in replans(plan)],
        "max_run": plan.options.max_run,
        "spent": 0.0,
        "budget": _budget(plan),
        "warning": 0.0,
        "stop_grace": stop_grace(),
        "patience": PATIENCE_SECONDS,
        "metric_definitions": [(metric.name, metric.regex) for metric in plan.options.metric_definitions],
        "claim": None,
        "output": str(output_folder(plan, folder)),
        "real_output": None,
        "compress": not plan.options.disable_output_compression,
        "s3": None,
        "pipes": None,
        "permit": None,
    }


def _budget(plan: JobPlan) -> BudgetConfig | None:
    hourly, most = plan.hourly_cost, plan.options.max_cost
    if hourly is None:
        return None
    text = "" if most is None else spent_text(most, hourly)
    return {"hourly_cost": hourly, "seconds": plan.budget, "text": text}


def _reap(controller: str | None) -> None:
    """Collect the controller of a job that is over, if it is a child of this process; else it stays as a zombie."""
    if controller not in _children:
        return
    # It exits right after it has written the end.
    deadline = time.monotonic() + _EXIT_SECONDS
    while is_alive(controller) and time.monotonic() < deadline:
        time.sleep(_EXIT_POLL_SECONDS)
    if not is_alive(controller):
        _children.discard(controller)


def _new_run_folder() -> Path:
    """Name the private folder for sockets; the name is short because the kernel limits socket paths to 108 bytes."""
    # Unique per job, and private (0700): other users of the machine must not connect to its sockets.
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) <= _TEMPORARY_FOLDER_CHARS else "/tmp", f"hb-{os.urandom(6).hex()}")  # noqa: S108


def stop_grace() -> float:
    """Return the seconds between SIGTERM and SIGKILL, which the environment may shorten."""
    text = os.environ.get(HostVariable.STOP_GRACE)
    try:
        return DEFAULT_STOP_GRACE_SECONDS if text is None else float(text)
    except ValueError:
        raise OptionError(f"{HostVariable.STOP_GRACE}={text}: expected a number of seconds") from None
