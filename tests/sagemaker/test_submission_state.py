"""Decide the state of a submission that was interrupted, from its row and SageMaker's description."""

import json

import pytest

from herringbone.backends.sagemaker.description import SubmissionState, differences, submission_state
from herringbone.records.index import JobRecord

REQUEST = {
    "TrainingJobName": "a",
    "HyperParameters": {"epochs": "3"},
    "Environment": {"TOKEN": "******"},
    "InputDataConfig": [{"ChannelName": "training"}],
    "Tags": [{"Key": "team", "Value": "one"}],
}
DESCRIPTION = {
    "TrainingJobName": "a",
    "TrainingJobStatus": "InProgress",
    "HyperParameters": {"epochs": "3"},
    "Environment": {"TOKEN": "abc"},
    "InputDataConfig": [{"ChannelName": "training", "CompressionType": "None"}],
}
OTHER_JOB = {**DESCRIPTION, "HyperParameters": {"epochs": "4"}}


def record(client):
    return JobRecord(name="a", backend="sagemaker", plan=json.dumps({"request": REQUEST}), created=1.0, client=client)


@pytest.mark.parametrize(
    ("client", "described", "lives", "expected"),
    [
        (None, None, False, SubmissionState.CREATED),
        ("7@1", None, True, SubmissionState.PREPARING),
        ("7@1", None, False, SubmissionState.NEVER_SENT),
        ("7@1", DESCRIPTION, True, SubmissionState.CREATED),
        ("7@1", DESCRIPTION, False, SubmissionState.CREATED),
        ("7@1", OTHER_JOB, False, SubmissionState.TAKEN),
    ],
)
def test_the_state_of_a_submission(client, described, lives, expected):
    assert submission_state(record(client), described, client_lives=lives) is expected


def test_differences_compare_only_requested_members():
    assert differences(REQUEST, DESCRIPTION) == []
    assert differences(REQUEST, OTHER_JOB) == ["HyperParameters.epochs"]
    assert differences(REQUEST, {**DESCRIPTION, "InputDataConfig": []}) == ["InputDataConfig"]
    assert differences(REQUEST, {**DESCRIPTION, "InputDataConfig": [{"ChannelName": "b"}]}) == [
        "InputDataConfig[0].ChannelName"
    ]
