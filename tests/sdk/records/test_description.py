"""The description of a job: facts from its row, its hosts and its log, by literals."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from herringbone import TrainingJob
from herringbone.backends.facts import add_facts, find_service_facts, versions_in
from herringbone.backends.registry import backend_named
from herringbone.backends.removal import remove_jobs
from herringbone.records.description import checkpoint_folders, describe_own_job, describe_service_job, output_place
from herringbone.records.home import JobFolder
from herringbone.records.index import JobIndex, JobRecord, stored_facts

FOLDER = JobFolder(Path("/home/me/jobs/a"))
PLAN = {
    "folder": "/work",
    "hosts": [{"name": "algo-1", "instance_type": "local"}, {"name": "algo-2", "instance_type": "local"}],
    "channels": [
        {"name": "training", "path": "/work/data", "input": {"s3_data": "data", "distribution": "ShardedByS3Key"}},
        {"name": "remote", "path": None, "input": {"s3_data": "s3://b/x"}},
    ],
    "options": {"max_run": 60, "input_mode": "File"},
    "arguments": {"image_uri": "mine:1"},
}


def record(plan=PLAN, **columns):
    return JobRecord(name="a", backend="local", plan=json.dumps(plan), created=0.0, status="Completed", **columns)


def described(plan=PLAN, facts=(), **columns):
    return describe_own_job(record(plan, **columns), FOLDER, dict(facts), now=9.0)


def with_options(**options):
    return {**PLAN, "options": {**PLAN["options"], **options}}


def test_paths_are_absolute():
    members = described()
    sources = [channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in members["InputDataConfig"]]
    assert sources == ["file:///work/data", "s3://b/x"]
    assert members["OutputDataConfig"] == {"S3OutputPath": "file:///home/me/jobs", "CompressionType": "GZIP"}
    assert members["CheckpointConfig"]["S3Uri"] == "file:///home/me/jobs/a/hosts/algo-1/ml/checkpoints"
    members = described(
        with_options(output_path="out", checkpoint_s3_uri="file://ckpt", disable_output_compression=True)
    )
    assert members["OutputDataConfig"] == {"S3OutputPath": "file:///work/out", "CompressionType": "NONE"}
    assert members["CheckpointConfig"] == {"S3Uri": "file:///work/ckpt", "LocalPath": "/opt/ml/checkpoints"}
    assert members["Herringbone"]["JobFolder"] == "/home/me/jobs/a"


def test_folders_of_results():
    assert output_place(PLAN, FOLDER) == Path("/home/me/jobs/a/output")
    assert output_place(with_options(output_path="out"), FOLDER) == Path("/work/out/a/output")
    assert list(checkpoint_folders(PLAN, FOLDER)) == ["algo-1", "algo-2"]
    assert set(checkpoint_folders(with_options(checkpoint_s3_uri="/c"), FOLDER).values()) == {Path("/c")}


@pytest.mark.parametrize(
    ("plan", "facts", "image"),
    [
        (PLAN, {}, "mine:1"),
        (PLAN, {"Image": "mine@sha256:12"}, "mine@sha256:12"),
        ({**PLAN, "unused": ["image_uri"]}, {}, None),
    ],
)
def test_the_image_is_the_one_that_ran(plan, facts, image):
    assert described(plan, facts)["AlgorithmSpecification"].get("TrainingImage") == image


def test_facts_have_a_member_of_their_own():
    facts = {"ImageId": "sha256:12", "Code": {"Commit": "5f70", "Dirty": True}, "Versions": {"Python": "3.11.7"}}
    assert described(facts=facts)["Herringbone"] == {"JobFolder": "/home/me/jobs/a", **facts}
    metrics = [{"MetricName": "loss", "Value": 1.0, "Timestamp": "2026-11-21T12:00:00+00:00"}]
    assert described(facts={"FinalMetricDataList": metrics})["FinalMetricDataList"] == metrics
    assert "FinalMetricDataList" not in described(facts={"FinalMetricDataList": []})
    answer = record(description=json.dumps({"TrainingJobName": "a", "RoleArn": "arn"}))
    assert describe_service_job(answer, facts)["Herringbone"] == {"Code": facts["Code"]}


def test_defined_metrics_without_a_value_are_named_at_the_end():
    definitions = [{"Name": name, "Regex": "(.)"} for name in ("loss", "top5", "top5")]
    metrics = [{"MetricName": "loss", "Value": 1.0, "Timestamp": "2026-11-21T12:00:00+00:00"}]
    plan, facts = with_options(metric_definitions=definitions), {"FinalMetricDataList": metrics}
    assert described(plan, facts)["Herringbone"]["MetricsWithoutValue"] == ["top5"]
    members = {"TrainingJobName": "a", "AlgorithmSpecification": {"MetricDefinitions": definitions}, **facts}
    answer = record(description=json.dumps(members))
    assert describe_service_job(answer, {})["Herringbone"] == {"MetricsWithoutValue": ["top5"]}
    assert "Herringbone" not in describe_service_job(replace(answer, status="InProgress"), {})


def test_a_row_of_another_release_is_described():
    assert described({})["TrainingJobName"] == "a"


@pytest.fixture
def job(home):
    """A job that is over, with a log and a host that has reported its versions."""
    home.make()
    folder = home.job("a")
    plan = with_options(metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    row = replace(record(plan), backend="local_process", model=str(folder.output / "model.tar.gz"))
    JobIndex(home.index).add(row)
    (folder.host("algo-1") / "output").mkdir(parents=True)
    (folder.host("algo-1") / "output/versions.json").write_text('{"Python": "3.11.7", "torch": "2.1\\u001b"}')
    folder.output.mkdir()
    (folder.output / "model.tar.gz").touch()
    folder.logs.mkdir()
    folder.log("algo-1").write_text("2026-11-21T12:00:00.000000Z [algo-1:0] loss=0.5\n")
    return TrainingJob("a", backend_named("local_process"))


def test_facts_of_a_job_that_is_over_are_found_once_and_survive_its_log(job, home):
    add_facts(JobIndex(home.index), "a", {"Code": {"Commit": "5f70", "Dirty": False}})
    members = job.describe()
    assert members["FinalMetricDataList"][0]["Value"] == 0.5
    assert members["Herringbone"]["Versions"] == {"Python": "3.11.7", "torch": r"2.1\x1b"}
    assert members["Herringbone"]["Code"]["Commit"] == "5f70"
    assert list(stored_facts(JobIndex(home.index).get("a"))) == ["Code", "Versions", "FinalMetricDataList"]
    home.job("a").log("algo-1").unlink()
    assert job.describe() == members


def test_a_job_of_a_service_shows_its_prediction_and_once_it_is_over_what_was_measured(job, home):
    step = {"seconds": {"low": 0.1, "expected": 0.2, "high": 0.3}, "compute": 0.2, "communication": 0, "idle": 0}
    planned = {"hosts": "x", "count": 1, "distribution": {}, "mesh": {}, "step": {**step, "data": 0}}
    row = replace(JobIndex(home.index).get("a"), plan=json.dumps({**PLAN, "prediction": {"planned": planned}}))
    running = find_service_facts(replace(row, status="InProgress"), backend_named("local_process"))
    assert running == {"Prediction": {"StepSeconds": {"Predicted": 0.2}}}
    events = home.job("a").logs / "algo-1.events"
    events.write_text('{"kind": "steps", "t": 1.0, "rank": 0, "count": 3, "seconds": [0.25, 0.25, 0.25]}\n')
    facts = find_service_facts(row, backend_named("local_process"))
    assert facts["Prediction"]["StepSeconds"] == {"Predicted": 0.2, "Measured": 0.25, "Error": -0.2}
    assert stored_facts(JobIndex(home.index).get("a")) == facts
    answer = record(description=json.dumps({"TrainingJobName": "a"}))
    assert describe_service_job(answer, facts)["Herringbone"] == facts


def test_a_kept_model_keeps_the_facts(job, home):
    remove_jobs(["a"], keep_model=True)
    assert not home.job("a").logs.exists()
    members = job.describe()
    assert members["FinalMetricDataList"][0]["Value"] == 0.5
    assert members["Herringbone"]["Versions"]["Python"] == "3.11.7"


@pytest.mark.parametrize("content", ["", "[]", "[" * 10_000, "no JSON"])
def test_a_file_of_versions_that_the_script_has_changed(job, home, content):
    path = home.job("a").host("algo-1") / "output/versions.json"
    path.write_text(content)
    assert versions_in(home.job("a")) == {}
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert versions_in(home.job("a")) == {}


@pytest.mark.parametrize("facts", [None, "", "[]", "{", "[" * 10_000])
def test_damaged_facts_are_none(facts):
    assert stored_facts(record(facts=facts)) == {}


def test_an_index_that_cannot_be_written_loses_facts_only(home):
    home.make()
    JobIndex(home.index).add(record())
    os.truncate(home.index, 100)
    add_facts(JobIndex(home.index), "a", {"Image": "mine:1"})
