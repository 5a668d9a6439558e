"""Slurm's commands on a login node, which the system's ssh reaches: a real sshd in a network namespace."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.slurm.backend import SlurmBackend
from herringbone.backends.slurm.commands import PREFIXES, SlurmCommands
from herringbone_contract.errors import SlurmError
from tests.slurm.conftest import rank_lines
from tests.ssh.machines import Machines, missing

pytestmark = [pytest.mark.slurm, pytest.mark.ssh]


# Options of Slurm's commands that a login file may set; each of them would overrule the plan or hide the job.
OPTIONS = {
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_NO_REQUEUE": "1",
    "SBATCH_PARTITION": "paid",
    "SBATCH_ARRAY_INX": "0-1",
    "SBATCH_JOB_NAME": "other",
    "SBATCH_HOLD": "1",
    "SLURM_STDOUTMODE": "/dev/null",
    "SLURM_TIMELIMIT": "1",
    "SQUEUE_PARTITION": "paid",
    "SQUEUE_STATES": "PENDING",
    "SQUEUE_FORMAT": "%i",
    "SLURM_CLUSTERS": "other",
    "SINFO_PARTITION": "paid",
    "SINFO_FORMAT": "%n",
    "SACCT_LOCAL": "1",
    "SCONTROL_FUTURE": "1",
    "SCANCEL_PARTITION": "paid",
    "SCANCEL_STATE": "SUSPENDED",
    "SCANCEL_NAME": "other",
    "SCANCEL_USER": "nobody",
}


@pytest.fixture(scope="module")
def login(cluster) -> Iterator[Machines]:
    """The machine h-1, which can reach slurmctld."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    variables = {"SLURM_CONF": str(cluster.configuration), **OPTIONS}
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
    return TrainingJob.submit(plan_request(estimator._asked(None), backend), backend)


def test_a_job_is_submitted_followed_and_stopped_by_ssh(backend, cluster):
    """Variables of the login machine's shell change nothing of it."""
    job = submit(backend, "import os; print('rank', os.environ['RANK'])", login="h-1")
    assert job.wait(timeout=60).status == "Completed", job.failure
    assert sorted(rank_lines(job)) == ["rank 0", "rank 1"]
    job = submit(backend, "import time\nprint('waits', flush=True)\ntime.sleep(600)", login="h-1")
    for line in job.logs(follow=True):
        if line.text == "waits":
            break
    (listed,) = cluster.ask(
        "squeue", "--noheader", "--me", f"--name={job.name}", "--Format=JobID,Partition"
    ).splitlines()
    assert listed.split()[1] == "gpu"
    shown = cluster.ask("scontrol", "--oneliner", "show", "job", listed.split()[0]).split()
    assert {"Requeue=1", "TimeLimit=1-00:00:00"} <= set(shown)
    job.stop()
    assert job.wait(timeout=60).status == "Stopped"


@pytest.mark.parametrize("there", [None, "h-1"])
def test_options_of_slurms_commands_in_a_shell_do_not_count(there):
    """As any shell of the caller or of the login machine runs the words; there, ssh joins them with blanks."""
    told = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "me", "HTTP_PROXY": "http://proxy", "MODULEPATH": "/m"}
    words = SlurmCommands({}, there).words("env", "--null", terminal=False)
    command = words if there is None else ["sh", "-c", words[-1]]
    environment = {"PATH": os.environ["PATH"], **told, **OPTIONS, "SQUEUE_SORT": "a\nSLURM_CONF=other"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    left = dict(line.partition("=")[::2] for line in output.split("\0"))
    assert {name: left.get(name) for name in told} == told
    assert not [name for name in left if name not in told and name.partition("_")[0] in PREFIXES]
    # What is missing is named, as without the cleaning.
    words = SlurmCommands({}, there).words("no-such-program", terminal=False)
    command = words if there is None else ["sh", "-c", words[-1]]
    assert subprocess.run(command, capture_output=True).returncode == 127


def test_a_login_node_that_cannot_be_reached_is_named(backend):
    with pytest.raises(SlurmError, match=r"sinfo on me@no-such-host.invalid: .*resolve"):
        submit(backend, "pass", login="me@no-such-host.invalid")
