"""What tests of every room may need: a container engine, and an image that jobs run in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from herringbone.engine.client import Engine
from herringbone.engine.locate import find_engine
from herringbone_contract.errors import HerringboneError

DOCKER = Path(__file__).parent / "docker"
_NAMED = "HERRINGBONE_TEST_IMAGE"
# Marks whose tests need something that a machine may lack, and the option that makes a skip of them a failure.
_REQUIRED = {
    "docker": "--engine-required",
    "tensorflow": "--tensorflow-required",
    "mxnet": "--mxnet-required",
    "slurm": "--slurm-required",
    "ssh": "--ssh-required",
}
_skipped: dict[str, list[str]] = {mark: [] for mark in _REQUIRED}
_IMAGE = pytest.StashKey[subprocess.CompletedProcess[str]]()

# Hypothesis times each example by itself; on a busy machine that says nothing about the code.
hypothesis.settings.register_profile("herringbone", deadline=None)
hypothesis.settings.load_profile("herringbone")


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark, option in _REQUIRED.items():
        parser.addoption(option, action="store_true", help=f"a skipped test of mark `{mark}` is a failure")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the image before any test's time is taken: a first build takes minutes."""
    wanted = any("image" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and _NAMED not in os.environ and not session.config.option.collectonly:
        session.config.stash[_IMAGE] = run(DOCKER / "image")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script on this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})


@pytest.fixture(scope="session")
def own_engine() -> Engine:
    """The container engine of this machine; tests that need one (mark `docker`) are skipped where none answers."""
    try:
        return find_engine(os.environ, Path.home())
    except HerringboneError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def engine(own_engine: Engine) -> Iterator[Any]:
    """The same engine through docker-py, with which tests arrange and observe independently of Herringbone's client."""
    import docker

    with docker.APIClient(base_url=own_engine.address, version="auto") as client:
        yield client


@pytest.fixture(scope="session")
def base_image(engine: Any) -> str:
    """The name of a small Debian without Python."""
    made = run(DOCKER / "base-image")
    if made.returncode:
        pytest.skip(made.stderr)
    return made.stdout.strip()


@pytest.fixture(scope="session")
def registry_program(engine: Any) -> str:
    """The path of a registry's server."""
    found = run(DOCKER / "registry")
    if found.returncode:
        pytest.skip(found.stderr)
    return found.stdout.strip()


@pytest.fixture(scope="session")
def build_image(engine: Any) -> Callable[..., str]:
    """Builds the image of a framework, unless it is there; returns its name."""

    def build(framework: str = "pytorch") -> str:
        made = run(DOCKER / "image", framework)
        assert made.returncode == 0, made.stderr[-2_000:]
        return made.stdout.strip()

    return build


@pytest.fixture(scope="session")
def image(engine: Any, request: pytest.FixtureRequest) -> str:
    """The image that jobs run in: HERRINGBONE_TEST_IMAGE, else PyTorch with the Herringbone of this tree."""
    if _NAMED in os.environ:
        return os.environ[_NAMED]
    made = request.config.stash[_IMAGE]
    if made.returncode:
        pytest.skip(made.stderr[-2_000:])
    return made.stdout.strip()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for mark, tests in _skipped.items():
        if report.skipped and mark in report.keywords and not hasattr(report, "wasxfail"):
            tests.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    for mark, option in _REQUIRED.items():
        if _skipped[mark] and session.config.getoption(option):
            print(f"\n{len(_skipped[mark])} tests of mark `{mark}` were skipped, and {option} was given")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
