"""Our SDK runs an image made with AWS's training toolkit."""

from __future__ import annotations

import os

import pytest
from tests.interop.conftest import read_model

from herringbone import Estimator
from herringbone_contract.errors import JobFailedError

pytestmark = [pytest.mark.docker, pytest.mark.interop]


@pytest.fixture
def estimator_of(project, toolkit, tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))

    def make(**more):
        return Estimator("train.py", source_dir=project / "code", image_uri=toolkit, instance_type="local", **more)

    return make


def inputs_of(project):
    return {"training": f"file://{project / 'data'}"}


def test_a_script_finds_what_we_send(estimator_of, project, capfd):
    estimator = estimator_of(hyperparameters={"epochs": 3, "name": "it's"}, environment={"MINE": "mine"})
    job = estimator.fit(inputs_of(project))
    (found,) = read_model(job.model_data)
    assert found["argv"] == ["--epochs", "3", "--name", "it's"]
    assert found["hyperparameters"] == {"epochs": 3, "name": "it's"}
    assert (found["data"], found["greeting"], found["mine"]) == ("1 2 3", "grüezi", "mine")
    assert (found["hosts"], found["host"], found["job"]) == (["algo-1"], "algo-1", job.name)
    assert "rank 0 is here" in capfd.readouterr().out


def test_two_hosts_know_each_other(estimator_of, project):
    found = read_model(estimator_of(instance_count=2).fit(inputs_of(project)).model_data)
    assert [(host["host"], host["hosts"]) for host in found] == [
        ("algo-1", ["algo-1", "algo-2"]),
        ("algo-2", ["algo-1", "algo-2"]),
    ]


@pytest.mark.slow  # the toolkit sleeps for 30 s behind its ranks
def test_ranks_of_mpi_on_two_hosts(estimator_of, project):
    estimator = estimator_of(instance_count=2, distribution={"mpi": {"enabled": True, "processes_per_host": 2}})
    if os.getuid() != 0:
        pytest.skip("the toolkit's MPI needs root, for sshd")
    found = read_model(estimator.fit(inputs_of(project)).model_data)
    # It tells every rank the names of the first host's environment, its own host's name among them.
    assert [(rank["world"], rank["hosts"]) for rank in found] == [("4", ["algo-1", "algo-2"])] * 4


def test_a_failure_is_told_in_the_toolkit_s_words(estimator_of, project):
    with pytest.raises(JobFailedError, match="ValueError: a loss that is not a number"):
        estimator_of(hyperparameters={"fail": ""}).fit(inputs_of(project))
