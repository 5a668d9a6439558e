"""Submit jobs while AWS or the network fails: no job is lost, and none is created twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

import pytest

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.creation import UnknownOutcomeError, create_job, look_up
from herringbone.backends.sagemaker.description import SubmissionState, submission_state
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.backends.sagemaker.submission import Submission
from herringbone.system.processes import is_alive
from herringbone.system.progress import Progress
from herringbone_contract.errors import AwsCredentialsError, AwsUnavailableError, HerringboneError, LaunchError
from tests.sagemaker.account import IMAGE, XML, RequestRecorder, answer, estimator, fit, job_names, keys

pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore.exceptions import ConnectionClosedError


@pytest.fixture(autouse=True)
def project_folder(account, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")


def times(number, fault):
    """Return a function that calls `fault` for the first `number` times, and then does nothing."""
    remaining = [fault] * number
    return lambda: remaining.pop()() if remaining else None


def network_gone():
    raise ConnectionClosedError(endpoint_url="https://aws")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda: answer(503, "SlowDown", form=XML), id="slow down"),
        pytest.param(lambda: answer(500, "InternalError", form=XML), id="internal error"),
        pytest.param(network_gone, id="network"),
    ],
)
def test_a_single_fault_of_s3_is_retried(recorder, index, fault):
    recorder.on("s3.PutObject", times(1, fault))
    fit(recorder)
    assert len(keys(recorder.boto)) == 1
    assert index.get("digits-1").client is None


def test_a_throttled_describe_is_retried(recorder):
    recorder.on("sagemaker.DescribeTrainingJob", times(1, lambda: answer(400, "ThrottlingException", "Rate exceeded")))
    fit(recorder)
    assert job_names(recorder.boto) == ["digits-1"]


def test_a_lasting_fault_of_s3_leaves_no_job(recorder, index, home):
    recorder.on("s3.PutObject", lambda: answer(503, "SlowDown", form=XML))
    session = AwsSession(recorder.boto, attempts=1)
    submission = Submission(estimator(recorder).plan(job_name="digits-1"), session, home=home, progress=Progress())
    with pytest.raises(AwsUnavailableError, match=r"to upload .*: AWS cannot serve the request now \(SlowDown\)"):
        submission.run("sagemaker", check_request)
    assert index.all() == []
    assert job_names(recorder.boto) == []


def test_credentials_that_expire_during_the_upload(recorder, index):
    recorder.on("s3.HeadObject", lambda: answer(400, "ExpiredToken", form=XML))
    with pytest.raises(AwsCredentialsError, match="the AWS credentials have expired; log in"):
        fit(recorder)
    assert index.all() == []


def test_an_unknown_outcome_is_reported(recorder):
    """The row stays; `describe` settles its state once AWS answers again."""
    session = AwsSession(recorder.boto, attempts=1)
    recorder.on("sagemaker.CreateTrainingJob", network_gone)
    recorder.on("sagemaker.DescribeTrainingJob", network_gone)
    with pytest.raises(UnknownOutcomeError, match="It is unknown whether job digits-1 was created: run"):
        create_job(session, _request(), pause=0.0)
    assert recorder.operations("sagemaker") == ["CreateTrainingJob", *["DescribeTrainingJob"] * 6]


def test_a_network_that_recovers_shows_that_there_is_no_job(recorder):
    session = AwsSession(recorder.boto, attempts=1)
    recorder.on("sagemaker.CreateTrainingJob", network_gone)
    recorder.on("sagemaker.DescribeTrainingJob", times(3, network_gone))
    with pytest.raises(AwsUnavailableError, match=r"^to create job digits-1: AWS does not answer") as caught:
        create_job(session, _request(), pause=0.0)
    assert type(caught.value) is AwsUnavailableError


def _request():
    plain = estimator(RequestRecorder()).plan(job_name="digits-1").request
    return {**plain, "RoleArn": "arn:aws:iam::123456789012:role/training"}


def test_an_index_that_breaks_after_the_creation_does_not_lose_the_job(recorder, index, home, tmp_path):
    def replace_index_by_a_folder(**_):
        home.index.rename(tmp_path / "aside")
        home.index.mkdir()

    recorder.boto.events.register("after-call.sagemaker.CreateTrainingJob", replace_index_by_a_folder)
    with pytest.raises(HerringboneError, match="the index of jobs"):
        fit(recorder)
    home.index.rmdir()
    (tmp_path / "aside").rename(home.index)
    described = look_up(AwsSession.of(recorder.boto), "digits-1")
    assert submission_state(index.get("digits-1"), described, client_lives=False) is SubmissionState.CREATED


def test_a_missing_temporary_folder_leaves_no_job(recorder, index, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(LaunchError, match=r"job digits-1 could not be prepared: .*gone"):
        fit(recorder)
    assert index.all() == []


BLOCKING_CLIENT = """
import os, sys, time
import boto3
from herringbone import Estimator
boto = boto3.Session()
def block(**_):
    print("reached", flush=True)
    time.sleep(60)
boto.events.register(sys.argv[2] + ".sagemaker.CreateTrainingJob", block)
Estimator("train.py", image_uri=sys.argv[1], instance_type="ml.m5.large", role="training",
          sagemaker_session=boto).fit(wait=False, job_name="digits-1")
"""


@pytest.mark.parametrize(
    ("at", "expected"), [("before-send", SubmissionState.NEVER_SENT), ("after-call", SubmissionState.CREATED)]
)
def test_a_client_that_is_killed_around_the_creation(recorder, index, at, expected):
    process = subprocess.Popen([sys.executable, "-c", BLOCKING_CLIENT, IMAGE, at], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "reached\n"
        row = index.get("digits-1")
        assert is_alive(row.client)
        process.send_signal(signal.SIGKILL)
    session = AwsSession.of(recorder.boto)
    assert submission_state(row, look_up(session, "digits-1"), client_lives=is_alive(row.client)) is expected
