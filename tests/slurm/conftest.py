"""Fixtures: one cluster for all tests of this folder, and a separate home for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.records.home import Home
from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes; tests with the mark `slurm` are skipped on a machine that cannot run a cluster."""
    if reason := missing():
        pytest.skip(reason)
    # A short path, because the kernel limits the paths of sockets.
    with tempfile.TemporaryDirectory(prefix="hbc-") as folder, Cluster(Path(folder)) as running:
        yield running


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A job folder that every node sees; at the end of the test no process of a job may run on any node."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERRINGBONE_STOP_GRACE", "5")
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield Home(tmp_path / "home")
    cluster.ask("scancel", "--user=root", "--quiet")
    cluster.wait(lambda: not cluster.processes())


@pytest.fixture
def submit(home: Home) -> Callable[..., TrainingJob]:
    """Submits a script, given as text, to one CPU of each node, and returns without waiting."""

    def fit(text: str, **options: Any) -> TrainingJob:
        Path("train.py").write_text(text)
        arguments = {"instance_type": "slurm:gpu", "instance_count": 1, "slurm": {"cpus": 1}, **options}
        job_name = arguments.pop("job_name", None)
        return Estimator("train.py", **arguments).fit(wait=False, job_name=job_name)

    return fit


def rank_lines(job: TrainingJob) -> list[str]:
    """Return the lines that the ranks have written so far."""
    return [line.text for line in job.logs() if line.rank is not None]
