"""Fixtures: a separate home for each test, scripts to run, and the stand-in supervisor."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.process.backend import ProcessBackend
from herringbone.records.home import Home

# If the tests were started with SIGINT ignored (`nohup`, a shell's `&`), their children would ignore it as well.
_INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def _has_namespaces() -> bool:
    code = "from herringbone.system import namespaces as n; n.unshare(n.NEW_MOUNTS | n.NEW_PROCESSES | n.NEW_NETWORK)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


with_namespaces = pytest.mark.skipif(not _has_namespaces(), reason="this system allows no namespaces")


def running_in(folder: Path) -> dict[int, str]:
    """Return pid and command line of the processes that have a path below `folder` in their environment."""
    mark = os.fsencode(folder)
    processes = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes():
                processes[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            pass  # the process ended between the listing and the read
    return processes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """The jobs' folder of one test; at the end no process of its jobs may run, and no temporary file may exist."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    # A line of its own: jobs of other tests, and of this machine's users, must not wait for this test's.
    monkeypatch.setenv("HERRINGBONE_SLOTS", str(tmp_path / "slots"))
    # A short path, because the run folders with their sockets are created in it.
    with tempfile.TemporaryDirectory(prefix="hb-test-") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        monkeypatch.setenv("TMPDIR", temporary)
        yield from _checked_home(tmp_path, monkeypatch)
        assert os.listdir(temporary) == []


def _checked_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield Home(tmp_path / "home")
    deadline = time.monotonic() + 5
    while (survivors := running_in(tmp_path / "home")) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in survivors:
        # A survivor would slow down the following tests, or fail them.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert survivors == {}


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Make files end at a size, as a full disk does: the write that crosses it is cut there."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limited


@pytest.fixture
def running(home: Home) -> Callable[[], list[str]]:
    """Returns the command lines of the running processes of this test's jobs."""
    return lambda: list(running_in(home.path).values())


@pytest.fixture
def start_python(home: Home) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python processes in which Ctrl-C works; they and their pipes end with the test."""
    with contextlib.ExitStack() as stack:

        def start(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", _INTERRUPTIBLE + code, *arguments]
            child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options))
            stack.callback(child.kill)
            return child

        yield start


@pytest.fixture
def stand_in() -> tuple[str, ...]:
    """The command of a supervisor that does no more than the controller needs."""
    return (sys.executable, str(Path(__file__).with_name("stand_in.py")))


@pytest.fixture
def script(home: Home) -> Callable[..., Path]:
    """Writes a script into the current folder."""

    def write(text: str, name: str = "train.py") -> Path:
        path = Path.cwd() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def backend(home: Home, stand_in: tuple[str, ...]) -> ProcessBackend:
    """`local_process` over the stand-in supervisor."""
    return ProcessBackend(home, stand_in)
