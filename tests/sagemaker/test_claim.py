"""What a row of the index is worth when its submission was cut short."""

import json

import pytest

from herringbone.backends.sagemaker.claim import Standing, differences, standing
from herringbone.jobs.index import JobRecord

REQUEST = {
    "TrainingJobName": "a",
    "HyperParameters": {"epochs": "3"},
    "Environment": {"TOKEN": "******"},
    "InputDataConfig": [{"ChannelName": "training"}],
    "Tags": [{"Key": "team", "Value": "one"}],
}
ANSWER = {
    "TrainingJobName": "a",
    "TrainingJobStatus": "InProgress",
    "HyperParameters": {"epochs": "3"},
    "Environment": {"TOKEN": "abc"},
    "InputDataConfig": [{"ChannelName": "training", "CompressionType": "None"}],
}
OTHER = {**ANSWER, "HyperParameters": {"epochs": "4"}}


def record(client):
    return JobRecord(name="a", backend="sagemaker", plan=json.dumps({"request": REQUEST}), created=1.0, client=client)


@pytest.mark.parametrize(
    ("client", "described", "lives", "expected"),
    [
        (None, None, False, Standing.CREATED),
        ("7@1", None, True, Standing.PREPARING),
        ("7@1", None, False, Standing.NEVER_SENT),
        ("7@1", ANSWER, True, Standing.CREATED),
        ("7@1", ANSWER, False, Standing.CREATED),
        ("7@1", OTHER, False, Standing.TAKEN),
    ],
)
def test_standing(client, described, lives, expected):
    assert standing(record(client), described, client_lives=lives) is expected


def test_differences_are_of_what_was_asked_for():
    assert differences(REQUEST, ANSWER) == []
    assert differences(REQUEST, OTHER) == ["HyperParameters.epochs"]
    assert differences(REQUEST, {**ANSWER, "InputDataConfig": []}) == ["InputDataConfig"]
    assert differences(REQUEST, {**ANSWER, "InputDataConfig": [{"ChannelName": "b"}]}) == [
        "InputDataConfig[0].ChannelName"
    ]
