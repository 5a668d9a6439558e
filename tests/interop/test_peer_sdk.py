"""AWS's released SDK, in its own local mode, runs our image as it is."""

from __future__ import annotations

import pytest
from tests.interop.conftest import read_model

pytestmark = [pytest.mark.docker, pytest.mark.interop]

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
TORCH = {"torch_distributed": {"enabled": True}}


def job_of(project, image, **more):
    return {
        "image_uri": image,
        "script": project / "code" / "train.py",
        "inputs": {"training": f"file://{project / 'data'}"},
        "hyperparameters": {"epochs": 3, "name": "it's"},
        "instance_count": 1,
        **more,
    }


def model_of(ended):
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read_model(next(line.split()[1] for line in ended.stdout.splitlines() if line.startswith("model ")))


def test_a_script_finds_what_the_peer_sends(fit_v2, project, image):
    ended = fit_v2(**job_of(project, image, environment={"MINE": "mine"}))
    (found,) = model_of(ended)
    assert found["argv"] == ["--epochs", "3", "--name", "it's"]
    assert found["hyperparameters"] == {"epochs": 3, "name": "it's"}
    assert (found["data"], found["greeting"], found["mine"]) == ("1 2 3", "grüezi", "mine")
    assert found["hosts"] == [found["host"]]
    assert found["world"] == "1"
    assert "rank 0 is here" in ended.stdout


def test_ranks_of_mpi(fit_v2, project, image):
    found = model_of(fit_v2(**job_of(project, image, distribution=MPI)))
    assert [rank["world"] for rank in found] == ["2", "2"]


def test_a_failure_is_one(fit_v2, project, image):
    ended = fit_v2(**job_of(project, image, hyperparameters={"fail": ""}))
    assert ended.returncode != 0
    assert "a loss that is not a number" in ended.stdout


@pytest.mark.parametrize(("distribution", "ranks"), [(TORCH, 1), (MPI, 2)], ids=["torch", "mpi"])
def test_hosts_meet_by_a_key_in_a_channel(fit_v2, project, image, distribution, ranks):
    """The peer has no secret channel between its hosts, and names them when the job is on its way."""
    (project / "secret").mkdir()
    (project / "secret" / "key").write_text("a secret of this job's")
    channels = {name: f"file://{project / folder}" for name, folder in (("training", "data"), ("secret", "secret"))}
    meeting = {"HERRINGBONE_CONTROL": "tcp::7590", "HERRINGBONE_KEY_FILE": "/opt/ml/input/data/secret/key"}
    job = job_of(project, image, instance_count=2, distribution=distribution, inputs=channels, environment=meeting)
    found = model_of(fit_v2(**job))
    assert [rank["world"] for rank in found] == [str(2 * ranks)] * 2 * ranks
    assert [rank["host"] for rank in found] == [host for host in found[0]["hosts"] for _ in range(ranks)]
