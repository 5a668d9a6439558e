"""The same requests to moto: docs/do/serve.md has a table of the differences, and these are moto's answers."""

from __future__ import annotations

import pytest

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

from tests.serve.test_members import REQUEST  # noqa: E402
from tests.serve.tuning_requests import NAME, tuning  # noqa: E402


def test_motos_answers_to_the_same_requests(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mock")
    with moto.mock_aws():
        client = boto3.client("sagemaker", region_name="us-east-1")
        client.create_training_job(**REQUEST)
        job = client.describe_training_job(TrainingJobName="digits-1")
        states = [state["Status"] for state in job["SecondaryStatusTransitions"]]
        assert (job["TrainingJobStatus"], states, "BillableTimeInSeconds" in job) == ("Completed", ["Starting"], False)
        # A taken name, KMS, a role of another account, a name that SageMaker's pattern excludes.
        for changes in (
            {},
            {"TrainingJobName": "a", "OutputDataConfig": {"S3OutputPath": "s3://mine", "KmsKeyId": "key"}},
            {"TrainingJobName": "b", "RoleArn": "arn:aws:iam::111111111111:role/other"},
            {"TrainingJobName": "c_d/.."},
        ):
            client.create_training_job(**{**REQUEST, **changes})
        for call in (client.stop_training_job, client.delete_training_job, client.update_training_job):
            with pytest.raises(NotImplementedError):
                call(TrainingJobName="digits-1")
        logs = boto3.client("logs", region_name="us-east-1")
        with pytest.raises(logs.exceptions.ResourceNotFoundException):
            logs.describe_log_streams(logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix="digits-1/")


def test_motos_answers_to_tuning_jobs(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mock")
    with moto.mock_aws():
        client = boto3.client("sagemaker", region_name="us-east-1")
        client.create_hyper_parameter_tuning_job(**tuning("digits"))
        answer = client.describe_hyper_parameter_tuning_job(**{NAME: "digits"})
        counters = answer["TrainingJobStatusCounters"]
        assert (answer["HyperParameterTuningJobStatus"], counters["Completed"]) == ("Completed", 1)
        assert client.list_training_jobs()["TrainingJobSummaries"] == []
        for call in (client.list_training_jobs_for_hyper_parameter_tuning_job, client.stop_hyper_parameter_tuning_job):
            with pytest.raises(NotImplementedError):
                call(**{NAME: "digits"})
