"""Run an image that contains AWS's training toolkit with our SDK."""

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

    def make(**options):
        return Estimator("train.py", source_dir=project / "code", image_uri=toolkit, instance_type="local", **options)

    return make


def inputs_of(project):
    return {"training": f"file://{project / 'data'}"}


def test_a_script_receives_what_we_send(estimator_of, project, capfd):
    estimator = estimator_of(hyperparameters={"epochs": 3, "name": "it's"}, environment={"MINE": "mine"})
    job = estimator.fit(inputs_of(project))
    (report,) = read_model(job.model_data)
    assert report["argv"] == ["--epochs", "3", "--name", "it's"]
    assert report["hyperparameters"] == {"epochs": 3, "name": "it's"}
    assert (report["data"], report["greeting"], report["mine"]) == ("1 2 3", "grüezi", "mine")
    assert (report["hosts"], report["host"], report["job"]) == (["algo-1"], "algo-1", job.name)
    assert "rank 0 is here" in capfd.readouterr().out


def test_two_hosts_know_each_others_names(estimator_of, project):
    reports = read_model(estimator_of(instance_count=2).fit(inputs_of(project)).model_data)
    assert [(report["host"], report["hosts"]) for report in reports] == [
        ("algo-1", ["algo-1", "algo-2"]),
        ("algo-2", ["algo-1", "algo-2"]),
    ]


@pytest.mark.slow  # the toolkit sleeps for 30 s after its ranks have ended
def test_ranks_of_mpi_on_two_hosts(estimator_of, project):
    estimator = estimator_of(instance_count=2, distribution={"mpi": {"enabled": True, "processes_per_host": 2}})
    if os.getuid() != 0:
        pytest.skip("the toolkit's MPI needs root, for sshd")
    reports = read_model(estimator.fit(inputs_of(project)).model_data)
    # The toolkit gives every rank the first host's environment, so `host` is wrong on the second host.
    assert [(report["world"], report["hosts"]) for report in reports] == [("4", ["algo-1", "algo-2"])] * 4


def test_a_failure_has_the_toolkits_message(estimator_of, project):
    estimator = estimator_of(hyperparameters={"fail": ""})
    with pytest.raises(JobFailedError, match="algo-1: exit code 1: ExecuteUserScriptError"):
        estimator.fit(inputs_of(project))
    # The toolkit reads the script's error output in a thread, and sometimes writes its message without it.
    assert "ValueError: a loss that is not a number" in [line.text for line in estimator.latest_training_job.logs()]
