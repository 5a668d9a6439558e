"""Fixtures for the tests of all folders: a container engine, an image that runs jobs, and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from herringbone.cli.__main__ import main
from herringbone.engine.client import Engine
from herringbone.engine.locate import find_engine
from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import HerringboneError

# A shell ignores Ctrl-C for what it starts in the background, and so would the programs whose Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DOCKER = Path(__file__).parent / "docker"
_IMAGE_VARIABLE = "HERRINGBONE_TEST_IMAGE"
# Some machines lack what the tests of these marks need. With the mark's option, a skipped test of it is a failure.
_REQUIRED = {
    "docker": "--engine-required",
    "tensorflow": "--tensorflow-required",
    "mxnet": "--mxnet-required",
    "huggingface": "--huggingface-required",
    "slurm": "--slurm-required",
    "kubernetes": "--kubernetes-required",
    "ssh": "--ssh-required",
    "trackers": "--trackers-required",
    "chromium": "--chromium-required",
    "gpu": "--gpu-required",
}
_skipped: dict[str, list[str]] = {mark: [] for mark in _REQUIRED}
_IMAGE = pytest.StashKey[subprocess.CompletedProcess[str]]()

# The report at the end of a job takes a third of a second of a core, which tests without an interest in it save.
os.environ.setdefault("HERRINGBONE_REPORT", "off")

# Hypothesis limits the time of each example. On a busy machine, a slow example is not a fault of the code.
hypothesis.settings.register_profile("herringbone", deadline=None)
hypothesis.settings.load_profile("herringbone")


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark, option in _REQUIRED.items():
        parser.addoption(option, action="store_true", help=f"a skipped test of mark `{mark}` is a failure")
    parser.addoption("--gpu-dry", action="store_true", help="tests of mark `gpu` train on the CPU")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the image before the first test, because a first build takes minutes and each test has a time limit."""
    wanted = any("image" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and _IMAGE_VARIABLE not in os.environ and not session.config.option.collectonly:
        session.config.stash[_IMAGE] = run(DOCKER / "image")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script, with this Python first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})


@pytest.fixture(scope="session")
def own_engine() -> Engine:
    """Return the container engine of this machine; skip the tests that need one (mark `docker`) if none answers."""
    try:
        return find_engine(os.environ, Path.home())
    except HerringboneError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def engine(own_engine: Engine) -> Iterator[Any]:
    """Yield a client of docker-py for the same engine, so that tests do not depend on Herringbone's own client."""
    import docker

    with docker.APIClient(base_url=own_engine.address, version="auto") as client:
        yield client


@pytest.fixture(scope="session")
def base_image(engine: Any) -> str:
    """Return the name of the image of a small Debian without Python."""
    build_run = run(DOCKER / "base-image")
    if build_run.returncode:
        pytest.skip(build_run.stderr)
    return build_run.stdout.strip()


@pytest.fixture(scope="session")
def registry_program(engine: Any) -> str:
    """Return the path of a registry's server."""
    lookup = run(DOCKER / "registry")
    if lookup.returncode:
        pytest.skip(lookup.stderr)
    return lookup.stdout.strip()


@pytest.fixture(scope="session")
def build_image(engine: Any) -> Callable[..., str]:
    """Return a function that builds the image of a framework, unless it exists, and returns its name."""

    def build(framework: str = "pytorch") -> str:
        build_run = run(DOCKER / "image", framework)
        assert build_run.returncode == 0, build_run.stderr[-2_000:]
        return build_run.stdout.strip()

    return build


@pytest.fixture(scope="session")
def image(engine: Any, request: pytest.FixtureRequest) -> str:
    """Return the image that runs jobs: HERRINGBONE_TEST_IMAGE, else PyTorch with the Herringbone of this tree."""
    if _IMAGE_VARIABLE in os.environ:
        return os.environ[_IMAGE_VARIABLE]
    build_run = request.config.stash[_IMAGE]
    if build_run.returncode:
        pytest.skip(build_run.stderr[-2_000:])
    return build_run.stdout.strip()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for mark, tests in _skipped.items():
        if report.skipped and mark in report.keywords and not hasattr(report, "wasxfail"):
            tests.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    for mark, option in _REQUIRED.items():
        if _skipped[mark] and session.config.getoption(option):
            print(f"\n{len(_skipped[mark])} tests of mark `{mark}` were skipped, and {option} was given")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def herringbone(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; returns its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Make this process rank 1 of a job; returns the events that its host hears since the last call."""
    fifo = tmp_path / "events"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    # So that the reader does not see an end before the first event.
    writer = os.open(fifo, os.O_WRONLY)
    monkeypatch.setenv(RankVariable.EVENTS, str(fifo))
    monkeypatch.setenv(RankVariable.RANK, "1")

    def read() -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in os.read(reader, 65_536).splitlines()]
        except BlockingIOError:
            return []

    yield read
    os.close(reader)
    os.close(writer)
