"""Predictions of jobs: what their plans show, send and hand on."""

from pathlib import Path

import pytest

from herringbone import PyTorch
from herringbone.api.planning import plan_request
from herringbone.cli.__main__ import main
from herringbone.plan.request import request_of


@pytest.fixture
def predicting(forecaster, script, monkeypatch):
    """Lets estimators and commands predict with the stand-ins."""
    script("print(1)")
    monkeypatch.setattr("herringbone.prediction.estimating.Forecaster", lambda _: forecaster)
    return forecaster


def test_a_change_is_shown_next_to_a_job_that_does_not_fit(predicting, monkeypatch, capsys):
    monkeypatch.setenv("GIB", "20")
    assert main(["plan", "train.py", "--what-if", "batch=16"]) == 2
    shown = capsys.readouterr()
    assert "what if batch=16:" in shown.out
    assert "10.0 GiB of 16.0 GiB" in shown.out
    assert "needs 20.0 GiB" in shown.err


def test_a_job_made_from_one_with_a_prediction_does_not_inherit_its_variable(predicting):
    estimator = PyTorch("train.py", instance_type="local_process", environment={"MINE": "7"})
    plan = estimator.plan(measure=True)
    assert plan.environment == {"MINE": "7", "HERRINGBONE_COMPARE": "on"}
    assert request_of(plan).options.environment == {"MINE": "7"}


def test_auto_keeps_the_other_settings_of_the_distribution(predicting, notes):
    parameters = {"partitions": 2, "ddp": True, "bf16": True}
    distribution = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": 4},
    }
    estimator = PyTorch("train.py", instance_type="local_process", distribution=distribution)
    plan_request(estimator._asked(None), estimator._backend, choose=True)
    searched = [question["distribution"] for question in notes("asked") if question["search"]]
    assert searched
    for one in searched:
        found = one.get("smdistributed", {}).get("modelparallel", {}).get("parameters", {})
        assert found.get("bf16") is True, one


def test_the_request_of_a_plan_has_the_variables_that_are_sent(predicting):
    estimator = PyTorch(
        "train.py", instance_type="ml.p4d.24xlarge", role="arn:aws:iam::111122223333:role/x", image_uri="i:1"
    )
    plan = estimator.plan(measure=True)
    assert plan.request["Environment"] == {"HERRINGBONE_COMPARE": "on"}


def test_a_file_alone_measures_nothing(predicting, notes, capsys):
    Path("job.yaml").write_text("framework: pytorch\nentry_point: train.py\ndistribution: auto\n")
    for words in (["plan", "job.yaml"], ["plan", "job.yaml", "--json"], ["run", "job.yaml"]):
        assert main(words) == 2
        assert "a file alone never does that; add --distribution auto" in capsys.readouterr().err
    assert notes("measured") == []
    # The user says so, in either way.
    for words in (["--distribution", "auto"], ["--measure"], ["-o", "distribution=auto"]):
        assert main(["plan", "job.yaml", *words]) == 0
    assert len(notes("measured")) == 1
