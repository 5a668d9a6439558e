"""Fixtures: an MLflow server, and a Python with the trackers' packages, in which exports and their readers run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import herringbone
import herringbone_contract
import herringbone_entry
import herringbone_parallel
from herringbone.records.home import Home
from herringbone.records.index import COMPLETED, JobIndex, JobRecord
from herringbone_contract.events.format import encode
from herringbone_entry.channel.reserved_port import ReservedPort

PYTHON = Path(__file__).parents[2] / ".venv-trackers" / "bin" / "python"
_SOURCES = [
    str(Path(package.__file__).parents[1])
    for package in (herringbone, herringbone_contract, herringbone_entry, herringbone_parallel)
]
_SERVER_SECONDS = 60


@pytest.fixture(scope="session")
def python() -> Path:
    """Return the Python with the trackers' packages."""
    if not PYTHON.exists():
        pytest.skip("there is no Python with the trackers' packages: tests/trackers/setup makes .venv-trackers")
    return PYTHON


@pytest.fixture(scope="session", autouse=True)
def starting_server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Start an MLflow server on loopback; the tests that need none run meanwhile."""
    folder = tmp_path_factory.mktemp("mlflow")
    # Made by the setup: the server takes seconds for the tables of an empty database.
    shutil.copy(python.parents[1] / "mlflow.db", folder)
    reserved = ReservedPort()
    port = reserved.number
    reserved.release()
    process = start_server(python, folder, port)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        stop_server(process)


@pytest.fixture
def server(starting_server: tuple[str, Any]) -> str:
    """Return the address of an MLflow server that answers."""
    wait_for_server(*starting_server)
    return starting_server[0]


def start_server(python: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start `mlflow server` with a database in `folder`."""
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # Under gunicorn, the server imports half as much.
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--gunicorn-opts", "--timeout 60"]
    environment = {
        **os.environ,
        "HOME": str(folder),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )


def wait_for_server(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _SERVER_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the MLflow server did not start; exit code {process.poll()}")


def stop_server(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, which are its session."""
    os.killpg(process.pid, 15)
    process.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return the jobs' folder of one test."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    home = Home(tmp_path / "home")
    home.make()
    return home


@pytest.fixture
def job(home: Home) -> Callable[..., Any]:
    """Return a function that makes a job that is over, with these events in the files of its hosts."""

    def make(name: str, events: dict[str, Sequence[dict[str, Any]]], **columns: Any) -> None:
        folder = home.job(name)
        folder.logs.mkdir(parents=True)
        for host, lines in events.items():
            (folder.logs / f"{host}.events").write_bytes(b"".join(map(encode, lines)))
        plan = {
            "job_name": name,
            "hosts": [{"name": "algo-1", "instance_type": "local_process"}],
            "hyperparameters": {"lr": "0.1", "sagemaker_program": '"train.py"', "hub_token": '"******"', "a@b": "1"},
            "options": {},
        }
        defaults = {"status": COMPLETED, "secondary_status": COMPLETED, "started": 100.0, "ended": 200.0}
        record = {"backend": "local_process", "created": 90.0, "plan": json.dumps(plan), **defaults, **columns}
        JobIndex(home.index).add(JobRecord(name=name, **record))

    return make


@pytest.fixture
def call(python: Path, home: Home, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs a function of `programs` in the Python with the trackers' packages."""

    def call(function: str, *arguments: Any, **variables: str) -> Any:
        environment = {**os.environ, **offline(tmp_path), "PYTHONPATH": os.pathsep.join(_SOURCES), **variables}
        command = [str(python), str(Path(__file__).with_name("programs.py")), function, json.dumps(arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3_000:]
        return json.loads(done.stdout)

    return call


def offline(folder: Path) -> dict[str, str]:
    """Return the variables with which no tracker leaves this machine, or writes outside of `folder`."""
    return {
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_MODE": "offline",
    }
