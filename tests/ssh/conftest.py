"""Three machines to log in to, and jobs on them."""

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
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.openssh import OpenSSHTransport
from herringbone.jobs.home import Home

from .machines import Machines, missing, stopped_masters


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    """h-1, h-2 and h-3, for all tests of a run: each finds them idle, and leaves them so."""
    if (why := missing()) is not None:
        pytest.skip(why)
    # A short name: ssh's shared connections are sockets in it.
    with tempfile.TemporaryDirectory(prefix="hbs") as folder, Machines(3, Path(folder)) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The jobs' folder of one test, and an empty current folder."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Home(tmp_path / "home")


@pytest.fixture
def transport(machines: Machines) -> Iterator[OpenSSHTransport]:
    """The way to the machines; connections are shared during a test, and closed after it."""
    with tempfile.TemporaryDirectory(prefix="hbc") as control, stopped_masters(Path(control)):
        yield OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control)


@pytest.fixture
def backend(home: Home, transport: OpenSSHTransport, machines: Machines) -> Iterator[SshBackend]:
    """Jobs on the machines: three heartbeats are three seconds, and nothing of a job is left at the end."""
    yield SshBackend(home, transport, environ={"HERRINGBONE_HEARTBEAT": "1", "HERRINGBONE_JOIN_TIMEOUT": "60"})
    left = {name: await_silence(machines, name) for name in machines.names}
    assert {name: commands for name, commands in left.items() if commands} == {}


def await_silence(machines: Machines, name: str) -> list[str]:
    """Return what of ours still runs on a machine after a moment; desks may stay with their visitors."""
    deadline = time.monotonic() + 10
    while True:
        found = [commands_of(pid) for pid in machines.pids(name, "herringbone")]
        left = [command for command in found if "herringbone.backends.ssh.agent" not in command]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def commands_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture
def submit(backend: SshBackend, machines: Machines) -> Callable[..., TrainingJob]:
    """Submits a script to all machines, or as many as `hosts` says."""

    def start(script: str, inputs: Any = None, *, hosts: int = 3, name: str | None = None, **given: Any) -> TrainingJob:
        Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
        Path("train.py").write_text(script)
        estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=hosts, **given)
        return TrainingJob.submit(estimator._plan(backend, inputs, name), backend)

    return start


def expect(job: TrainingJob, *texts: str, seconds: float = 30) -> None:
    """Read a job's log until these texts have come, each on a line of its own."""
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
    listed = subprocess.run(["tar", "tf", archive.removeprefix("file://")], check=True, capture_output=True, text=True)
    return sorted(listed.stdout.split())
