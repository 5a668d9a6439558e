"""Slurm's commands on a login node, which the system's ssh reaches: a real sshd in a network namespace."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.backends.slurm.backend import SlurmBackend
from herringbone_contract.errors import SlurmError
from tests.slurm.conftest import rank_lines
from tests.ssh.machines import Machines, missing

pytestmark = [pytest.mark.slurm, pytest.mark.ssh]


@pytest.fixture(scope="module")
def login(cluster) -> Iterator[Machines]:
    """The machine h-1, which can reach slurmctld."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    variables = {"SLURM_CONF": str(cluster.configuration)}
    with (
        tempfile.TemporaryDirectory(prefix="hbs") as folder,
        Machines(1, Path(folder), variables=variables) as machines,
    ):
        route = ["ip", "route", "add", "default", "via", machines.gateway]
        subprocess.run([*machines.inside("h-1"), *route], check=True)
        yield machines


@pytest.fixture
def backend(home, login, tmp_path) -> SlurmBackend:
    """The backend of a machine outside the cluster: no SLURM_CONF, and an ssh with the user's configuration."""
    programs = tmp_path / "programs"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {login.config} "$@"\n')
    ssh.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    return SlurmBackend(home, {**environ, "PATH": f"{programs}:{environ['PATH']}"})


def submit(backend: SlurmBackend, script: str, *, login: str) -> TrainingJob:
    Path("train.py").write_text(script)
    estimator = Estimator("train.py", instance_type="slurm:gpu", instance_count=2, slurm={"cpus": 1, "login": login})
    return TrainingJob.submit(estimator._plan(backend, None, None), backend)


def test_a_job_is_submitted_followed_and_stopped_by_ssh(backend):
    job = submit(backend, "import os; print('rank', os.environ['RANK'])", login="h-1")
    assert job.wait(timeout=60).status == "Completed", job.failure
    assert sorted(rank_lines(job)) == ["rank 0", "rank 1"]
    job = submit(backend, "import time\nprint('waits', flush=True)\ntime.sleep(600)", login="h-1")
    for line in job.logs(follow=True):
        if line.text == "waits":
            break
    job.stop()
    assert job.wait(timeout=60).status == "Stopped"


def test_a_login_node_that_cannot_be_reached_is_named(backend):
    with pytest.raises(SlurmError, match=r"sinfo on me@no-such-host.invalid: .*resolve"):
        submit(backend, "pass", login="me@no-such-host.invalid")
