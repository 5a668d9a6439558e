"""Convert literal answers of DescribeTrainingJob to rows of the index."""

import json
from datetime import datetime, timezone

import pytest

from herringbone.backends.sagemaker.description import failure_of, row_of
from herringbone_contract.failure import Failure, Frame, summary
from herringbone_contract.failure_text import parse_failure

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
STARTING = {
    "TrainingJobName": "digits-1",
    "TrainingJobStatus": "InProgress",
    "SecondaryStatus": "Starting",
    "CreationTime": NOON,
    "Environment": {"API_TOKEN": "hunter2", "EPOCHS": "3"},
    "ResponseMetadata": {"RequestId": "1"},
}
SUPERVISOR_FAILURE = Failure(
    "algo-2", 9, 1, "ValueError", "bad batch", (Frame("train.py", 4, "run", "raise ValueError(batch)"),), ("epoch 2",)
)


def test_a_starting_job():
    row = row_of(STARTING)
    description = json.loads(row.pop("description"))
    assert row == {
        "status": "InProgress",
        "secondary_status": "Starting",
        "created": NOON.timestamp(),
        "started": None,
        "ended": None,
        "failure": None,
        "model": None,
    }
    assert description == {
        "TrainingJobName": "digits-1",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "CreationTime": "2026-11-21T12:00:00+00:00",
        "Environment": {"API_TOKEN": "******", "EPOCHS": "3"},
    }


@pytest.mark.parametrize(
    "secondary", ["Completed", "Stopped", "MaxRuntimeExceeded", "Interrupted", "MaxWaitTimeExceeded"]
)
def test_an_ended_job_has_times_and_a_model(secondary):
    status = "Completed" if secondary == "Completed" else "Stopped"
    answer = {
        **STARTING,
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "TrainingStartTime": NOON,
        "TrainingEndTime": NOON,
        "ModelArtifacts": {"S3ModelArtifacts": "s3://mine/digits-1/output/model.tar.gz"},
    }
    row = row_of(answer)
    assert (row["status"], row["secondary_status"]) == (status, secondary)
    assert row["started"] == row["ended"] == NOON.timestamp()
    assert row["model"] == "s3://mine/digits-1/output/model.tar.gz"


def test_a_job_that_never_got_hosts_ended_at_its_last_change_and_has_no_model():
    answer = {
        **STARTING,
        "TrainingJobStatus": "Failed",
        "SecondaryStatus": "Failed",
        "LastModifiedTime": 99.5,
        "FailureReason": "CapacityError: Unable to provision requested ML compute capacity.",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://mine/digits-1/output/model.tar.gz"},
    }
    row = row_of(answer)
    assert (row["ended"], row["model"]) == (99.5, None)
    assert parse_failure(row["failure"]).exception == "CapacityError"


def test_a_failure_text_of_the_supervisor_is_parsed_with_rank_and_frames():
    assert failure_of(f"AlgorithmError: {summary(SUPERVISOR_FAILURE)}, exit code: 1") == SUPERVISOR_FAILURE
    assert failure_of(summary(SUPERVISOR_FAILURE)) == SUPERVISOR_FAILURE


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (
            'AlgorithmError: ExecuteUserScriptError:\nExitCode 2\nErrorMessage "", exit code: 2',
            Failure(
                exit_code=2, exception="AlgorithmError", message='ExecuteUserScriptError:\nExitCode 2\nErrorMessage ""'
            ),
        ),
        ("AlgorithmError: , exit code: 137", Failure(exit_code=137, exception="AlgorithmError")),
        (
            "ClientError: Data download failed: no such key",
            Failure(exit_code=0, exception="ClientError", message="Data download failed: no such key"),
        ),
        ("something new", Failure(exit_code=0, message="something new")),
    ],
)
def test_other_reasons_stay_one_message(reason, failure):
    assert failure_of(reason) == failure
