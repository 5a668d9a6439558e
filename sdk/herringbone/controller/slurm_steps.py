"""Hosts that are steps of a Slurm job: the controller runs on the first node, and each host's supervisor under an srun.

    sbatch's script = controller --- srun --relative=0 ---> slurmstepd --- supervisor of algo-1     on the first node
                            \\--- srun --relative=1 ---> slurmstepd --- supervisor of algo-2     on the second

An srun's standard input is its supervisor's private line and lifeline, and then brings it requests of clients. The
controller makes the job's secret for each attempt, and sends it over no other path. When the controller ends, Slurm
ends what is left of the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path

from herringbone.controller.hosts import Host, Restart, Site
from herringbone.controller.log_files import LogFile
from herringbone.controller.record import FileRecord, job_events, read_report, read_stop_request
from herringbone.controller.retry import Attempt, excluded_machines
from herringbone.records.index import RESTARTING
from herringbone.records.job_events import held_seconds
from herringbone_contract import safe_tree
from herringbone_contract.constants import BASE_VARIABLE, MAX_RECORD_BYTES, HostVariable
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import STOPPED_CODE, exit_code_of
from herringbone_contract.failure_text import parse_failure
from herringbone_contract.paths import INSIDE
from herringbone_contract.variables import SLURM_TASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from herringbone.protocols.controller_config import ControllerConfig, HostConfig, StepsConfig
    from herringbone_contract.failure import Failure

_SECRET_BYTES = 32
# The controller touches its report this often.
BEAT_SECONDS = 10
# Ports outside the range from which systems take the ports of outgoing connections. Jobs that share a node start
# their search at different ports.
_LOWEST_PORT, _PORTS, _TRIES = 12_000, 18_000, 100
# A slurmctld that restarts answers within this time.
_COMMAND_SECONDS = 60.0
# Slurm signals a requeued job's batch step within this time, and accepts changes of the job from then on.
_UPDATE_SECONDS = 5.0
_UPDATE_PAUSE_SECONDS = 0.25
OUT_OF_MEMORY = "out of memory: ask for more (slurm={'cpus': ..., 'memory': ...})"
# Lines with which Slurm reports a step that it, or the kernel, ended for its memory. Ranks' lines have a prefix.
_MEMORY_ERROR = re.compile(
    rb"^(?:slurmstepd|srun)[-.\w]*: error: .*(?:memory limit|oom.kill|out of memory)", re.I | re.M
)
# Messages of srun that blame the node, not the program.
_NODE_ERRORS = (b"srun: error: Task launch for", b"srun: error: Node failure on", b"Communication connection failure")


class StepHost(Host):
    """One supervisor, the srun that started it, and the node on which it runs."""

    def __init__(self, config: HostConfig, log: LogFile, node: str) -> None:
        super().__init__(config, log)
        self.node = node
        self._srun: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], environment: dict[str, str], line: bytes) -> None:
        """Start the supervisor and send it the private line. Raises `OSError`."""
        self._srun = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._srun.stdin is not None
        assert self._srun.stdout is not None
        # A duplicate, because `Host` closes its descriptor itself and Popen's file object would close it again.
        self.output = os.dup(self._srun.stdout.fileno())
        self._srun.stdout.close()
        os.set_blocking(self.output, False)
        # If the srun has ended already, its exit code reports that.
        with contextlib.suppress(BrokenPipeError):
            self._srun.stdin.write(line)
            self._srun.stdin.flush()
        # Requests of clients follow, and an srun that does not read must not stop the controller.
        self.line = self._srun.stdin.fileno()
        os.set_blocking(self.line, False)

    def signal(self, number: int) -> None:
        """Stop the supervisor: SIGTERM ends its lifeline, SIGINT makes Slurm kill the step, SIGKILL ends the srun."""
        if self._srun is None or self.exit_code is not None:
            return
        if number == signal.SIGTERM and not self.lost:
            assert self._srun.stdin is not None
            self.line = None
            with contextlib.suppress(BrokenPipeError):
                self._srun.stdin.close()
        elif number == signal.SIGINT and not self.lost:
            # srun answers SIGTERM by ending its step, and Slurm then kills the step's processes.
            self._srun.terminate()
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            # The srun of a lost node waits for slurmstepd for as long as Slurm does, so only a kill ends it soon.
            self._srun.kill()

    def take_ending(self) -> int | None:
        """Return the supervisor's exit code once its srun has ended, None before."""
        if self._srun is None or self.exit_code is not None:
            return None
        returned = self._srun.poll()
        if returned is None:
            return None
        code = exit_code_of(returned)
        if code == 0 and not safe_tree.exists(self.base, str(INSIDE.success)):
            # An srun that is told to end returns 0, whatever its program returns.
            code = STOPPED_CODE
        self.cancelled = code == STOPPED_CODE and self.failure() is None
        return code

    def failure(self) -> Failure | None:
        """Return the failure that the supervisor recorded for its host."""
        try:
            return parse_failure(safe_tree.read_file(self.base, str(INSIDE.failure_record), limit=MAX_RECORD_BYTES))
        except (OSError, ContractError):
            return None

    def _text(self, chunk: bytes) -> bytes:
        if _MEMORY_ERROR.search(chunk):
            self.cause = OUT_OF_MEMORY
        self.lost = self.lost or any(message in chunk for message in _NODE_ERRORS)
        return chunk


class Steps(Site):
    """The hosts of one job as steps of the Slurm job whose batch script is this controller.

    Slurm ends what is left of a step, and the hosts' files are on the shared file system already.
    """

    hosts: list[StepHost]

    def __init__(self, config: ControllerConfig, steps: StepsConfig) -> None:
        assert config["report"] is not None
        self._report = Path(config["report"])
        self._steps = steps
        self._events = job_events(config)
        self._record = FileRecord(self._report)
        # Each attempt has a controller of its own, on other nodes. The report tells it of the attempts before.
        self.failed_attempts = [Attempt(**attempt) for attempt in read_report(self._report).get("attempts", [])]
        # Touched while its controller lived, also one that was lost with its node.
        with contextlib.suppress(OSError):
            self.spent = held_seconds(f"{config['logs']}/job.events", self._report.stat().st_mtime)
        self._id = os.environ["SLURM_JOB_ID"]
        self._attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        # On a cluster without task binding, srun complains about --cpu-bind=none.
        self._binds = any(word in self._ask("scontrol", "show", "config") for word in ("task/affinity", "task/cgroup"))
        nodes = self._ask("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
        # A site's wrapper of scontrol may print something first.
        nodes = nodes[-len(config["hosts"]) :]
        # Hosts get the nodes in Slurm's order, so that --relative=0 is the node of this controller.
        self.hosts = [
            StepHost(host, LogFile(f"{config['logs']}/{host['name']}.log"), node)
            for host, node in zip(config["hosts"], nodes, strict=True)
        ]

    @property
    def machines(self) -> dict[str, str]:
        return {host.name: host.node for host in self.hosts}

    def start(self) -> None:
        nodes = [host.node for host in self.hosts]
        # The attempt's number lets the client tell this report from one that an earlier attempt left.
        columns = {"attempt": self._attempt, "nodes": nodes, "beats": BEAT_SECONDS}
        self._record.begin(**columns, **self.attempt_columns(self.failed_attempts))
        threading.Thread(target=self._beat, daemon=True).start()
        if self._attempt and self._events.last_state() != RESTARTING:
            # The controller of the attempt before was lost with its node, and has written no reason.
            self._events.state(RESTARTING)
            self._events.restart(self._attempt + 1, "Slurm restarted the job", ())
        for host in self.hosts:
            if self._attempt:
                host.log_begins = host.log.size
                host.clear()
                host.log.say(f"[{host.name}] attempt {self._attempt + 1}", time.time())
            host.log.say(f"[{host.name}] Slurm job {self._id}, node {host.node}", time.time())
        # One line for all hosts: they prove to each other that they know the same key.
        line = self._private_line()
        variables = {**os.environ, **self._steps["variables"]}
        if len(self.hosts) > 1:
            # This controller runs on the node of the first host, so it can look for a port that is free there.
            variables[HostVariable.CONTROL] = f"tcp:{self._first_address()}:{free_port(int(self._id))}"
        for position, host in enumerate(self.hosts):
            host.start(self._srun(position), {**variables, BASE_VARIABLE: host.base}, line)

    def _beat(self) -> None:
        """Show clients that this process runs: they know it by the age of the report alone."""
        while True:
            time.sleep(BEAT_SECONDS)
            with contextlib.suppress(OSError):
                os.utime(self._report)

    def on_host_failure(self) -> None:
        """Mark the hosts that others lost contact with: their sruns would wait for as long as Slurm does."""
        failures = [host.failure() for host in self.hosts if host.exit_code]
        lost = {failure.lost_host for failure in failures if failure is not None}
        for host in self.hosts:
            if host.name in lost and host.exit_code is None:
                host.lost = True

    def attempt_columns(self, failed: Sequence[Attempt]) -> dict[str, Any]:
        return {"attempts": [asdict(attempt) for attempt in failed]}

    def restart(self, failed: Sequence[Attempt]) -> Restart:
        """Put the job back into Slurm's queue, and exclude the lost and the blamed nodes."""
        # A stop that was requested while the hosts ended must not be answered with a new attempt.
        if read_stop_request(self._report) is not None:
            return Restart.NONE
        first = self.hosts[0]
        without = [*excluded_machines(failed), *(host.node for host in self.hosts if host.lost)]
        if without:
            first.log.say(f"[{first.name}] the next attempt has other nodes than {', '.join(without)}", time.time())
        if not self._put_back():
            return Restart.NONE
        if without:
            self._exclude(without)
        return Restart.ELSEWHERE

    def is_interrupted(self, *, stopped: bool) -> bool:
        """Report that Slurm preempts the job: it sends SIGTERM to a running job, and no user has asked for a stop."""
        if read_stop_request(self._report) is not None:
            return False
        try:
            words = self._ask("scontrol", "--oneliner", "show", "job", self._id).split()
        except (OSError, subprocess.SubprocessError):
            return False
        # A job that somebody cancels, or whose time is over, is no longer running at its SIGTERM.
        is_preempted = any(word.startswith("PreemptTime=") and not word.endswith("=None") for word in words)
        return "JobState=RUNNING" in words and (stopped or is_preempted)

    def requeue(self) -> bool:
        """Put a preempted job back into the queue. Slurm does so only with jobs that outlive its GraceTime."""
        why, first = "Slurm took its nodes away before its end", self.hosts[0]
        # Recorded before the requeue, after which this process may be killed at any moment.
        first.log.say(f"[{first.name}] {why}: putting the job back into the queue", time.time())
        self._record.update(secondary_status=RESTARTING)
        self._events.state(RESTARTING)
        self._events.restart(self._attempt + 2, why, ())
        return self._put_back()

    def _put_back(self) -> bool:
        try:
            self._ask("scontrol", "requeue", self._id)
        except (OSError, subprocess.SubprocessError) as error:
            first = self.hosts[0]
            text = f"[{first.name}] Slurm does not restart the job: {error_text(error)}"
            first.log.say(text, time.time())
            return False
        return True

    def _srun(self, position: int) -> list[str]:
        unset = [word for name in SLURM_TASK for word in ("-u", name)]
        one = ["--nodes=1", "--ntasks=1", f"--relative={position}", f"--job-name={self.hosts[position].name}"]
        # All CPUs of the node that the job has, and none of Slurm's libraries for MPI.
        plain = ["--export=ALL", "--mpi=none", *(["--cpu-bind=none"] if self._binds else []), "--kill-on-bad-exit=0"]
        return ["srun", *one, *plain, *self._steps["srun"], "env", *unset, *self._steps["argv"]]

    def _private_line(self) -> bytes:
        secrets = {"environment": self._steps["environment"], "key": os.urandom(_SECRET_BYTES).hex()}
        return json.dumps(secrets).encode() + b"\n"

    def _first_address(self) -> str:
        """Return the address under which the other nodes' slurmd know this node."""
        node = os.environ.get("SLURMD_NODENAME", self.hosts[0].node)
        words = self._ask("scontrol", "--oneliner", "show", "node", node).split()
        return next(word.partition("=")[2] for word in words if word.startswith("NodeAddr="))

    def _exclude(self, nodes: list[str]) -> None:
        """Keep the next attempt off these nodes; Slurm itself may not know yet that they are gone."""
        deadline = time.monotonic() + _UPDATE_SECONDS
        while time.monotonic() < deadline:
            try:
                self._ask("scontrol", "update", f"JobId={self._id}", f"ExcNodeList={','.join(nodes)}")
            except (OSError, subprocess.SubprocessError):
                # The SIGTERM of the requeue may have ended scontrol as well.
                time.sleep(_UPDATE_PAUSE_SECONDS)
            else:
                return

    def _ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMMAND_SECONDS).stdout


def error_text(error: Exception) -> str:
    """Return the error output of a failed command."""
    output = getattr(error, "stderr", None)
    return str(output or error).strip()


def free_port(start: int) -> int:
    """Return a TCP port that no process of this machine listens at now; `start` shifts the start of the search."""
    import socket

    for step in range(_TRIES):
        number = _LOWEST_PORT + (start * _TRIES + step) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", number))
            except OSError:
                continue
            return number
    first = _LOWEST_PORT + start * _TRIES % _PORTS
    raise OSError(f"none of {_TRIES} ports of this node is free, from {first} on")
