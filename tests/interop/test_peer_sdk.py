"""Run our image, unchanged, with AWS's released SDK in its own local mode."""

from __future__ import annotations

import pytest
from tests.interop.conftest import read_model

pytestmark = [pytest.mark.docker, pytest.mark.interop]

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
TORCH_DISTRIBUTED = {"torch_distributed": {"enabled": True}}


def job_of(project, image, **changes):
    return {
        "image_uri": image,
        "script": project / "code" / "train.py",
        "inputs": {"training": f"file://{project / 'data'}"},
        "hyperparameters": {"epochs": 3, "name": "it's"},
        "instance_count": 1,
        **changes,
    }


def model_of(process):
    assert process.returncode == 0, process.stdout + process.stderr
    return read_model(next(line.split()[1] for line in process.stdout.splitlines() if line.startswith("model ")))


def test_a_script_receives_what_the_peer_sends(fit_v2, project, image):
    process = fit_v2(**job_of(project, image, environment={"MINE": "mine"}))
    (report,) = model_of(process)
    assert report["argv"] == ["--epochs", "3", "--name", "it's"]
    assert report["hyperparameters"] == {"epochs": 3, "name": "it's"}
    assert (report["data"], report["greeting"], report["mine"]) == ("1 2 3", "grüezi", "mine")
    assert report["hosts"] == [report["host"]]
    assert report["world"] == "1"
    assert "rank 0 is here" in process.stdout


def test_ranks_of_mpi(fit_v2, project, image):
    reports = model_of(fit_v2(**job_of(project, image, distribution=MPI)))
    assert [report["world"] for report in reports] == ["2", "2"]


def test_a_failure_fails_the_job(fit_v2, project, image):
    process = fit_v2(**job_of(project, image, hyperparameters={"fail": ""}))
    assert process.returncode != 0
    assert "a loss that is not a number" in process.stdout


@pytest.mark.parametrize(("distribution", "ranks"), [(TORCH_DISTRIBUTED, 1), (MPI, 2)], ids=["torch", "mpi"])
def test_hosts_find_each_other_with_a_key_in_a_channel(fit_v2, project, image, distribution, ranks):
    """The peer gives its hosts no shared secret, and names them only when the job starts."""
    (project / "secret").mkdir()
    (project / "secret" / "key").write_text("a secret of this job's")
    channels = {name: f"file://{project / folder}" for name, folder in (("training", "data"), ("secret", "secret"))}
    rendezvous = {"HERRINGBONE_CONTROL": "tcp::7590", "HERRINGBONE_KEY_FILE": "/opt/ml/input/data/secret/key"}
    job = job_of(project, image, instance_count=2, distribution=distribution, inputs=channels, environment=rendezvous)
    reports = model_of(fit_v2(**job))
    assert [report["world"] for report in reports] == [str(2 * ranks)] * 2 * ranks
    assert [report["host"] for report in reports] == [host for host in reports[0]["hosts"] for _ in range(ranks)]
