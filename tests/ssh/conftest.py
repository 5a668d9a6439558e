"""Fixtures: three machines to log in to, a transport to them, and jobs on them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport
from herringbone.records.home import Home

from .machines import Machines, missing, stopped_masters


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    """Machines h-1, h-2 and h-3 for all tests of a run; each test finds them idle and must leave them idle."""
    if (why := missing()) is not None:
        pytest.skip(why)
    # A short path: it holds the sockets of shared connections, whose paths are limited to 108 bytes.
    with tempfile.TemporaryDirectory(prefix="hbs") as folder, Machines(3, Path(folder)) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Herringbone's home for one test, and an empty current folder."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Home(tmp_path / "home")


@pytest.fixture
def transport(machines: Machines) -> Iterator[OpenSSHTransport]:
    """The transport to the machines; connections are shared during a test, and closed after it."""
    with tempfile.TemporaryDirectory(prefix="hbc") as control, stopped_masters(Path(control)):
        yield OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control)


@pytest.fixture
def backend(home: Home, transport: OpenSSHTransport, machines: Machines) -> Iterator[SshBackend]:
    """The backend for the machines, with heartbeats of one second; at the end no process of a job may remain."""
    yield SshBackend(home, transport, environ={"HERRINGBONE_HEARTBEAT": "1", "HERRINGBONE_JOIN_TIMEOUT": "60"})
    remaining = {name: await_silence(machines, name) for name in machines.names}
    assert {name: commands for name, commands in remaining.items() if commands} == {}


def await_silence(machines: Machines, name: str) -> list[str]:
    """Return the commands of Herringbone's processes that do not end within 10 s; agents may stay while clients do."""
    deadline = time.monotonic() + 10
    while True:
        commands = [command_of(pid) for pid in machines.pids(name, "herringbone")]
        remaining = [command for command in commands if "herringbone.backends.ssh.agent" not in command]
        if not remaining or time.monotonic() > deadline:
            return remaining
        time.sleep(0.05)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture
def submit(backend: SshBackend, machines: Machines) -> Callable[..., TrainingJob]:
    """A function that submits a script to `hosts` machines."""

    def start(
        script: str, inputs: Any = None, *, hosts: int = 3, name: str | None = None, **options: Any
    ) -> TrainingJob:
        Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
        Path("train.py").write_text(script)
        estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=hosts, **options)
        return TrainingJob.submit(plan_request(estimator._asked(inputs), backend, name), backend)

    return start


def expect(job: TrainingJob, *texts: str, seconds: float = 30) -> None:
    """Read a job's log until each of these texts has appeared, each on a line of its own."""
    waiting, deadline = list(texts), time.monotonic() + seconds
    lines = job.logs(follow=True)
    for line in lines:
        waiting = [text for text in waiting if text not in line.text]
        if not waiting:
            lines.close()
            return
        assert time.monotonic() < deadline, waiting
    raise AssertionError(f"the job ended ({job.status}, {job.failure}) without {waiting}")


def members(archive: str) -> list[str]:
    """Return the names in a packed model."""
    listing = subprocess.run(["tar", "tf", archive.removeprefix("file://")], check=True, capture_output=True, text=True)
    return sorted(listing.stdout.split())
