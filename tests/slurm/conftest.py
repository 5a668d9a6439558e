"""One cluster for all tests of this folder, and a home of its own for each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.jobs.home import Home
from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes; tests that need them (mark `slurm`) are skipped where there can be none."""
    if why := missing():
        pytest.skip(why)
    # Short, for sockets.
    with tempfile.TemporaryDirectory(prefix="hbc-") as folder, Cluster(Path(folder)) as running:
        yield running


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A job folder that every node sees; at the test's end no process of a job may be left on any of them."""
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
        given = {"instance_type": "slurm:gpu", "instance_count": 1, "slurm": {"cpus": 1}, **options}
        job_name = given.pop("job_name", None)
        return Estimator("train.py", **given).fit(wait=False, job_name=job_name)

    return fit


def said(job: TrainingJob) -> list[str]:
    """Return what the ranks wrote so far."""
    return [line.text for line in job.logs() if line.rank is not None]
