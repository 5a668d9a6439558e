"""Tuning jobs at a running service, by unchanged clients, with real trainings on `local_process`."""

from __future__ import annotations

import os
import subprocess
import tarfile
import time

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("boto3")
from botocore.exceptions import ClientError

from herringbone.system.processes import may_live, place
from herringbone.tuner.store import TuningStore
from tests.serve.test_live import GROUP, HERE, PEER_PYTHON, Running, wait
from tests.serve.tuning_requests import CATEGORICAL, NAME, SCRIPT, tuning, with_static, with_trial


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("service"))
    (running.buckets / "mine" / "src" / "tune.py").write_text(SCRIPT)
    with tarfile.open(running.buckets / "mine" / "tune.tar.gz", "w:gz") as archive:
        archive.add(running.buckets / "mine" / "src" / "tune.py", "tune.py")
    yield running
    running.end()
    # Each call that failed inside has left a traceback.
    assert "Traceback" not in (running.folder / "service.log").read_text()


def wait_for(client, name, *states, seconds=200.0):
    deadline = time.monotonic() + seconds
    while True:
        answer = client.describe_hyper_parameter_tuning_job(**{NAME: name})
        if answer["HyperParameterTuningJobStatus"] in states:
            return answer
        assert answer["HyperParameterTuningJobStatus"] in ("InProgress", "Stopping"), answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.3)


def wait_for_first(client, name):
    """Return when the first trial trains."""
    deadline = time.monotonic() + 200
    while not trials_of(client, name):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    wait(client, f"{name}-001", "Training")


def trials_of(client, name, **members):
    pages = client.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
        **{NAME: name}, PaginationConfig={"PageSize": 2}, **members
    )
    return [trial for page in pages for trial in page["TrainingJobSummaries"]]


def values_of(trial):
    return {name: text for name, text in trial["TunedHyperParameters"].items() if name != "epochs"}


def objective(trial):
    return trial["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]


def test_boto3_searches(service):
    """Trials are training jobs of their owner, with the tags of their tuning job, logs and models."""
    client, bob = service.client(), service.client(key=service.bob)
    ranges = {
        "ContinuousParameterRanges": [{"Name": "point", "MinValue": "0", "MaxValue": "10"}],
        "CategoricalParameterRanges": [CATEGORICAL],
    }
    request = tuning("random", jobs=3, parallel=2, ParameterRanges=ranges)
    arn = client.create_hyper_parameter_tuning_job(**request, Tags=[{"Key": "team", "Value": "a"}])
    assert arn["HyperParameterTuningJobArn"].endswith(":123456789012:hyper-parameter-tuning-job/random")
    with pytest.raises(ClientError, match="exists already"):
        client.create_hyper_parameter_tuning_job(**request)
    answer = wait_for(client, "random", "Completed")
    assert answer["TrainingJobStatusCounters"]["Completed"] == 3
    assert answer["ObjectiveStatusCounters"]["Succeeded"] == 3
    trials = trials_of(client, "random")
    assert [trial["TrainingJobName"] for trial in trials] == ["random-001", "random-002", "random-003"]
    ranked = trials_of(client, "random", SortBy="FinalObjectiveMetricValue")
    assert [objective(trial) for trial in ranked] == sorted(objective(trial) for trial in trials)
    assert answer["BestTrainingJob"]["TrainingJobName"] == ranked[0]["TrainingJobName"]
    assert {trial["TunedHyperParameters"]["word"] for trial in trials} <= {'"good"', '"bad"'}
    for trial in trials:
        x, word = float(trial["TunedHyperParameters"]["point"]), trial["TunedHyperParameters"]["word"]
        assert objective(trial) == pytest.approx((x - 3) ** 2 + (word == '"bad"') + 1, abs=1e-5)
        job = client.describe_training_job(TrainingJobName=trial["TrainingJobName"])
        assert job["TuningJobArn"] == arn["HyperParameterTuningJobArn"]
        assert job["HyperParameters"]["point"] == trial["TunedHyperParameters"]["point"]
        with tarfile.open(service.buckets / job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://")) as model:
            assert float(model.extractfile("point").read()) == x
    assert client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"] == [{"Key": "team", "Value": "a"}]
    assert len(client.list_training_jobs(NameContains="random-")["TrainingJobSummaries"]) == 3
    logs = service.client("logs").filter_log_events(
        logGroupName=GROUP, logStreamNamePrefix="random-001/", filterPattern="loss"
    )
    assert f"loss {objective(trials[0]):.6f};" in logs["events"][0]["message"]
    (summary,) = client.list_hyper_parameter_tuning_jobs(NameContains="random")["HyperParameterTuningJobSummaries"]
    assert (summary["Strategy"], summary["HyperParameterTuningJobStatus"]) == ("Random", "Completed")
    filters = [{"Name": "Tags.team", "Operator": "Equals", "Value": "a"}]
    search = {"Resource": "HyperParameterTuningJob", "SearchExpression": {"Filters": filters}}
    (hit,) = client.search(**search)["Results"]
    assert hit["HyperParameterTuningJob"]["BestTrainingJob"] == answer["BestTrainingJob"]
    # Another user sees nothing of all this.
    assert bob.list_hyper_parameter_tuning_jobs()["HyperParameterTuningJobSummaries"] == []
    assert bob.list_training_jobs()["TrainingJobSummaries"] == []
    assert bob.search(**search)["Results"] == []
    with pytest.raises(ClientError, match="ResourceNotFound"):
        bob.describe_hyper_parameter_tuning_job(**{NAME: "random"})
    client.delete_hyper_parameter_tuning_job(**{NAME: "random"})
    with pytest.raises(ClientError, match="ResourceNotFound"):
        client.describe_hyper_parameter_tuning_job(**{NAME: "random"})
    assert client.describe_training_job(TrainingJobName="random-003")["TrainingJobStatus"] == "Completed"


def test_the_other_strategies(service):
    """Grid, Hyperband, early stopping and a warm start, as our tuner searches."""
    client = service.client()
    create = client.create_hyper_parameter_tuning_job
    lists = {"CategoricalParameterRanges": [CATEGORICAL]}
    create(**with_static(tuning("grid", jobs=None, parallel=2, Strategy="Grid", ParameterRanges=lists), point="3"))
    hyperband = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 3}}
    request = tuning("hyperband", jobs=3, parallel=3, Strategy="Hyperband", StrategyConfig=hyperband)
    create(**with_static(request, epochs="3"))
    create(**with_static(tuning("early", jobs=4, parallel=1, TrainingJobEarlyStoppingType="Auto"), epochs="2"))
    assert wait_for(client, "grid", "Completed")["BestTrainingJob"]["TunedHyperParameters"] == {"word": '"good"'}
    assert wait_for(client, "hyperband", "Completed")["TrainingJobStatusCounters"]["InProgress"] == 0
    assert {trial["TunedHyperParameters"]["epochs"] for trial in trials_of(client, "hyperband")} == {"1", "3"}
    parent = wait_for(client, "early", "Completed")
    warm = {"WarmStartType": "IdenticalDataAndAlgorithm", "ParentHyperParameterTuningJobs": [{NAME: "early"}]}
    request = with_static(tuning("warm", jobs=1, RandomSeed=2), epochs="2")
    create(**request, WarmStartConfig=warm)
    answer = wait_for(client, "warm", "Completed")
    best = min([parent["BestTrainingJob"], answer["BestTrainingJob"]], key=objective)
    assert answer["OverallBestTrainingJob"]["TrainingJobName"] == best["TrainingJobName"]
    with pytest.raises(ClientError, match="there is no hyperparameter tuning job early"):
        service.client(key=service.bob).create_hyper_parameter_tuning_job(
            **{**request, NAME: "of-bob"}, WarmStartConfig=warm
        )


def test_bayesian(service):
    pytest.importorskip("optuna")
    client = service.client()
    client.create_hyper_parameter_tuning_job(**tuning("bayesian", jobs=2, Strategy="Bayesian"))
    assert wait_for(client, "bayesian", "Completed")["TrainingJobStatusCounters"]["Completed"] == 2


def test_a_killed_service_loses_no_search(service):
    """The search goes on without a service; a searcher that is killed as well is started again by the next one."""
    client = service.client()
    secret = {"Environment": {"MY_TOKEN": "hush"}}
    client.create_hyper_parameter_tuning_job(**with_trial(tuning("alone", jobs=3), **secret))
    client.create_hyper_parameter_tuning_job(**with_static(tuning("again", jobs=2), seconds="4"))
    wait_for_first(client, "again")
    service.end(kill=True)
    home = service.folder / "home"
    deadline = time.monotonic() + 200
    while not (alone := TuningStore(home / "tunings" / "alone")).state().done:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "hush" not in "".join(path.read_text() for path in alone.path.glob("*.json*"))
    state = TuningStore(home / "tunings" / "again").state()
    if not state.done:
        pid = int(state.searcher.partition("@")[0])
        os.kill(pid, 9)
        while may_live(state.searcher, place()):
            time.sleep(0.05)
    service.start()
    assert wait_for(client, "alone", "Completed")["TrainingJobStatusCounters"]["Completed"] == 3
    assert wait_for(client, "again", "Completed")["TrainingJobStatusCounters"]["Completed"] == 2
    described = client.describe_training_job(TrainingJobName="alone-003")
    assert described["Environment"] == {"MY_TOKEN": "******"}


def test_stop(service):
    client = service.client()
    client.create_hyper_parameter_tuning_job(**with_static(tuning("stops", jobs=5), seconds="600"))
    wait_for_first(client, "stops")
    with pytest.raises(ClientError, match="stop it first"):
        client.delete_hyper_parameter_tuning_job(**{NAME: "stops"})
    client.stop_hyper_parameter_tuning_job(**{NAME: "stops"})
    assert wait_for(client, "stops", "Stopped")["TrainingJobStatusCounters"]["Stopped"] == 1
    with pytest.raises(ClientError, match="is in status Stopped"):
        client.stop_hyper_parameter_tuning_job(**{NAME: "stops"})


def test_our_own_tuner_searches_at_the_service(service, monkeypatch, tmp_path):
    from herringbone import PyTorch
    from herringbone.api.tuner import HyperparameterTuner
    from herringbone.tuner.parameters import ContinuousParameter

    for name, value in service.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "client"))
    (tmp_path / "tune.py").write_text(SCRIPT)
    estimator = PyTorch(
        str(tmp_path / "tune.py"),
        role="arn:aws:iam::123456789012:role/me",
        image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-cpu-py312",
        instance_type="ml.m5.large",
        hyperparameters={"word": "good"},
    )
    tuner = HyperparameterTuner(
        estimator,
        "loss",
        {"point": ContinuousParameter(0.0, 10.0)},
        [{"Name": "loss", "Regex": "loss ([0-9.]+);"}],
        strategy="Random",
        objective_type="Minimize",
        max_jobs=2,
    )
    tuner.fit(job_name="by-ours")
    objectives = {record.job: record.objective for record in tuner.trials()}
    assert len(objectives) == 2
    assert tuner.best_training_job() == min(objectives, key=objectives.get)
    attached = HyperparameterTuner.attach("by-ours")
    assert attached.estimator._request.arguments.hyperparameters == {"word": "good"}
    assert attached.best_training_job() == tuner.best_training_job()


# `sagemaker` asks for the state every 5 s.
@pytest.mark.timeout(400)
@pytest.mark.peer
def test_the_released_sdk_tunes(service):
    if not PEER_PYTHON.exists():
        pytest.skip("tests/peer/setup makes the environment of `sagemaker` 2.x")
    # Without telemetry, which goes to an address of AWS's.
    config = service.folder / "config.yaml"
    config.write_text("{SchemaVersion: '1.0', SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}}")
    home = {"HOME": str(service.folder), "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config)}
    environment = {"PATH": os.environ["PATH"], **home, **service.environment()}
    command = [PEER_PYTHON, HERE / "tune_v2.py", service.buckets / "mine" / "src" / "tune.py"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380)
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    trials = {trial["TrainingJobName"]: objective(trial) for trial in trials_of(service.client(), "by-v2-tuner")}
    assert len(trials) == 2
    assert lines[-2] == f"best {min(trials, key=trials.get)}"
    assert lines[-1] == f"rows {sorted(trials)}"
