"""Hosts that are steps of a Slurm job: the controller runs on the first node, and each host's supervisor under an srun.

    sbatch's script = controller --- srun --relative=0 ---> slurmstepd --- supervisor of algo-1     on the first node
                            \\--- srun --relative=1 ---> slurmstepd --- supervisor of algo-2     on the second

An srun's standard input is its supervisor's private line and lifeline: the job's secret is made here, anew for each
attempt, and travels nowhere else. What of the job is left when this process ends, Slurm ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from herringbone.controller.hosts import Host
from herringbone.controller.log_files import LogFile
from herringbone.controller.record import FileRecord, read_report, stop_wish
from herringbone.controller.retry import Attempt, excluded
from herringbone_contract.constants import BASE_VARIABLE, HostVariable
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import exit_code_of, parse_failure
from herringbone_contract.paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from herringbone.controller.config import HostOrder, Order, StepsOrder
    from herringbone.controller.hosts import Renewal
    from herringbone_contract.failure import Failure

_SECRET_BYTES = 32
_STOPPED_CODE = 128 + signal.SIGTERM
# Beside the ports that systems hand out by themselves; jobs of one node begin their search at different ones.
_LOWEST_PORT, _PORTS, _TRIES = 12_000, 18_000, 100
# slurmctld is restarted within it.
_COMMAND_SECONDS = 60.0
# A requeued job's batch step gets SIGTERM within it, and Slurm takes changes from then on.
_UPDATE_SECONDS = 5.0
_UPDATE_PAUSE_SECONDS = 0.25
# What srun says when the node, not the program, is at fault.
_NODE_TROUBLE = (b"srun: error: Task launch for", b"srun: error: Node failure on", b"Communication connection failure")
# By these, MPI, Lightning and others take themselves for tasks that srun laid out; ours are laid out by the supervisor.
_TASK_VARIABLES = (
    *("SLURM_JOBID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
    *("SLURM_STEPID", "SLURM_STEP_ID", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_NNODES", "SLURM_TASK_PID"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
)


class StepHost(Host):
    """One supervisor, the srun that started it, and the node it runs on."""

    def __init__(self, order: HostOrder, log: LogFile, node: str) -> None:
        super().__init__(order, log)
        self.node = node
        self._srun: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], environment: dict[str, str], line: bytes) -> None:
        """Start the supervisor and tell it in private what it has to know. Raises `OSError`."""
        self._srun = subprocess.Popen(
            argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._srun.stdin is not None
        assert self._srun.stdout is not None
        self.output = os.dup(self._srun.stdout.fileno())
        self._srun.stdout.close()
        os.set_blocking(self.output, False)
        # Whoever ended already is told of by its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._srun.stdin.write(line)
            self._srun.stdin.flush()

    def signal(self, number: int) -> None:
        """Ask the supervisor to stop by ending its lifeline; SIGINT has Slurm kill the step, SIGKILL ends the srun."""
        if self._srun is None or self.exit_code is not None:
            return
        if number == signal.SIGTERM and not self.lost:
            assert self._srun.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._srun.stdin.close()
        elif number == signal.SIGINT and not self.lost:
            self._srun.terminate()
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            self._srun.kill()

    def take_ending(self) -> int | None:
        """Return the supervisor's exit code once its srun has ended, None before."""
        if self._srun is None or self.exit_code is not None:
            return None
        returned = self._srun.poll()
        if returned is None:
            return None
        code = exit_code_of(returned)
        if code == 0 and not Path(Paths(Path(self.base)).success).exists():
            # A srun that is told to end returns 0, whatever becomes of its program.
            code = _STOPPED_CODE
        self.called_off = code == _STOPPED_CODE and self.failure() is None
        return code

    def failure(self) -> Failure | None:
        """Return what the supervisor wrote of its host's failure."""
        try:
            return parse_failure(Path(Paths(Path(self.base)).failure_record).read_bytes())
        except (OSError, ContractError):
            return None

    def _text(self, chunk: bytes) -> bytes:
        self.lost = self.lost or any(trouble in chunk for trouble in _NODE_TROUBLE)
        return chunk


class Steps:
    """The hosts of one job as steps of the Slurm job whose batch script we are."""

    def __init__(self, order: Order, steps: StepsOrder) -> None:
        assert order["report"] is not None
        self._order = order
        self._steps = steps
        self._record = FileRecord(Path(order["report"]))
        self.failed = [Attempt(**each) for each in read_report(Path(order["report"])).get("attempts", [])]
        self._id = os.environ["SLURM_JOB_ID"]
        self._attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        # A cluster that binds no tasks complains of who wants none bound.
        self._binds = any(word in self._ask("scontrol", "show", "config") for word in ("task/affinity", "task/cgroup"))
        nodes = self._ask("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
        self.hosts = [
            StepHost(each, LogFile(f"{order['logs']}/{each['name']}.log"), node)
            for each, node in zip(order["hosts"], nodes, strict=True)
        ]

    @property
    def places(self) -> dict[str, str]:
        return {host.name: host.node for host in self.hosts}

    def start(self) -> None:
        nodes = [host.node for host in self.hosts]
        self._record.begin(attempt=self._attempt, nodes=nodes, **self.told(self.failed))
        for host in self.hosts:
            if self._attempt:
                host.log_begins = host.log.size
                host.clear()
                host.log.say(f"[{host.name}] attempt {self._attempt + 1}", time.time())
            host.log.say(f"[{host.name}] Slurm job {self._id}, node {host.node}", time.time())
        line = self._private_line()
        variables = {**os.environ, **self._steps["variables"]}
        if len(self.hosts) > 1:
            variables[HostVariable.CONTROL] = f"tcp:{self._first_address()}:{free_port(int(self._id))}"
        for place, host in enumerate(self.hosts):
            host.start(self._srun(place), {**variables, BASE_VARIABLE: host.base}, line)

    def endings(self) -> Iterator[tuple[Host, int]]:
        for host in self.hosts:
            code = host.take_ending()
            if code is not None:
                yield host, code

    def sweep(self) -> None:
        pass  # Slurm ends what is left of a step

    def rouse(self) -> None:
        """Find out which hosts the others have lost: their sruns would wait for as long as Slurm does."""
        found = [host.failure() for host in self.hosts if host.exit_code]
        lost = {failure.lost_host for failure in found if failure is not None}
        for host in self.hosts:
            if host.name in lost and host.exit_code is None:
                host.lost = True

    def collect(self) -> None:
        pass  # what hosts write lies on the shared file system already

    def told(self, failed: Sequence[Attempt]) -> dict[str, Any]:
        return {"attempts": [asdict(each) for each in failed]}

    def begin_anew(self, failed: Sequence[Attempt]) -> Renewal:
        """Put the job back into the queue, and have Slurm choose other nodes than those lost or excluded."""
        if self._wished():
            return None
        first = self.hosts[0]
        without = [*excluded(failed), *(host.node for host in self.hosts if host.lost)]
        if without:
            first.log.say(f"[{first.name}] the next attempt has other nodes than {', '.join(without)}", time.time())
        try:
            self._ask("scontrol", "requeue", self._id)
        except (OSError, subprocess.SubprocessError) as error:
            first.log.say(f"[{first.name}] Slurm does not start the job again: {trouble(error)}", time.time())
            return None
        if without:
            self._exclude(without)
        return "elsewhere"

    def leave(self) -> None:
        pass

    def abandon(self) -> None:
        for host in self.hosts:
            host.signal(signal.SIGKILL)

    def _srun(self, place: int) -> list[str]:
        strip = [word for name in _TASK_VARIABLES for word in ("-u", name)]
        one = ["--nodes=1", "--ntasks=1", f"--relative={place}", f"--job-name={self.hosts[place].name}"]
        # All CPUs of the node that the job has, and no library of Slurm's for MPI.
        plain = ["--export=ALL", "--mpi=none", *(["--cpu-bind=none"] if self._binds else []), "--kill-on-bad-exit=0"]
        return ["srun", *one, *plain, *self._steps["srun"], "env", *strip, *self._steps["argv"]]

    def _private_line(self) -> bytes:
        said = {"environment": self._steps["environment"], "key": os.urandom(_SECRET_BYTES).hex()}
        return json.dumps(said).encode() + b"\n"

    def _first_address(self) -> str:
        """Return the address of this node as the others' slurmd know it."""
        node = os.environ.get("SLURMD_NODENAME", self.hosts[0].node)
        words = self._ask("scontrol", "--oneliner", "show", "node", node).split()
        return next(word.partition("=")[2] for word in words if word.startswith("NodeAddr="))

    def _exclude(self, nodes: list[str]) -> None:
        """Keep the next attempt off these; Slurm itself may not know yet that they are gone."""
        deadline = time.monotonic() + _UPDATE_SECONDS
        while time.monotonic() < deadline:
            try:
                self._ask("scontrol", "update", f"JobId={self._id}", f"ExcNodeList={','.join(nodes)}")
            except (OSError, subprocess.SubprocessError):
                # The requeue's own SIGTERM may have ended that command.
                time.sleep(_UPDATE_PAUSE_SECONDS)
            else:
                return

    def _wished(self) -> bool:
        assert self._order["report"] is not None
        return stop_wish(Path(self._order["report"])) is not None

    def _ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COMMAND_SECONDS).stdout


def trouble(error: Exception) -> str:
    """Return what a command had to say of its failure."""
    said = getattr(error, "stderr", None)
    return str(said or error).strip()


def free_port(start: int) -> int:
    """Return a TCP port that nobody on this machine listens at now; jobs begin their search at different ones."""
    import socket

    for step in range(_TRIES):
        number = _LOWEST_PORT + (start * _TRIES + step) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", number))
            except OSError:
                continue
            return number
    raise OSError(f"no free port among {_TRIES} of this node's, from {_LOWEST_PORT + start * _TRIES % _PORTS} on")
