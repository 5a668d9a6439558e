"""What AWS and the network do to a submission, and what becomes of the job: never lost, never two."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

import pytest

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.claim import Standing, standing
from herringbone.backends.sagemaker.create import UnknownOutcomeError, create_job
from herringbone.backends.sagemaker.lookup import look_up
from herringbone.backends.sagemaker.progress import Progress
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.backends.sagemaker.submission import Submission
from herringbone.processes import is_alive
from herringbone_contract.errors import AwsCredentialsError, AwsUnavailableError, HerringboneError, LaunchError
from tests.sagemaker.account import IMAGE, XML, Wire, answer, estimator, fit, job_names, keys

pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore.exceptions import ConnectionClosedError


@pytest.fixture(autouse=True)
def here(account, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")


def times(number, trouble):
    """Have trouble so many times, then none."""
    left = [trouble] * number
    return lambda: left.pop()() if left else None


def network_gone():
    raise ConnectionClosedError(endpoint_url="https://aws")


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(lambda: answer(503, "SlowDown", form=XML), id="slow down"),
        pytest.param(lambda: answer(500, "InternalError", form=XML), id="internal error"),
        pytest.param(network_gone, id="network"),
    ],
)
def test_s3_in_trouble_is_asked_again(wire, index, trouble):
    wire.on("s3.PutObject", times(1, trouble))
    fit(wire)
    assert len(keys(wire.boto)) == 1
    assert index.get("digits-1").client is None


def test_a_throttled_describe_is_asked_again(wire):
    wire.on("sagemaker.DescribeTrainingJob", times(1, lambda: answer(400, "ThrottlingException", "Rate exceeded")))
    fit(wire)
    assert job_names(wire.boto) == ["digits-1"]


def test_s3_that_stays_in_trouble_leaves_no_job(wire, index, home):
    wire.on("s3.PutObject", lambda: answer(503, "SlowDown", form=XML))
    session = AwsSession(wire.boto, attempts=1)
    submission = Submission(estimator(wire).plan(job_name="digits-1"), session, home=home, progress=Progress())
    with pytest.raises(AwsUnavailableError, match=r"to upload .*: AWS asks to be asked later \(SlowDown\)"):
        submission.run("sagemaker", check_request)
    assert index.all() == []
    assert job_names(wire.boto) == []


def test_credentials_that_expire_meanwhile(wire, index):
    wire.on("s3.HeadObject", lambda: answer(400, "ExpiredToken", form=XML))
    with pytest.raises(AwsCredentialsError, match="the AWS credentials have expired; log in"):
        fit(wire)
    assert index.all() == []


def test_nobody_to_ask_what_came_of_it(wire):
    """The row stays then: `describe` settles it once AWS answers again."""
    session = AwsSession(wire.boto, attempts=1)
    wire.on("sagemaker.CreateTrainingJob", network_gone)
    wire.on("sagemaker.DescribeTrainingJob", network_gone)
    with pytest.raises(UnknownOutcomeError, match="Whether job digits-1 was created is not known: ask"):
        create_job(session, _request(), pause=0.0)
    assert wire.operations("sagemaker") == ["CreateTrainingJob", *["DescribeTrainingJob"] * 6]


def test_a_network_that_comes_back_tells_that_there_is_no_job(wire):
    session = AwsSession(wire.boto, attempts=1)
    wire.on("sagemaker.CreateTrainingJob", network_gone)
    wire.on("sagemaker.DescribeTrainingJob", times(3, network_gone))
    with pytest.raises(AwsUnavailableError, match=r"^to create job digits-1: AWS does not answer") as caught:
        create_job(session, _request(), pause=0.0)
    assert type(caught.value) is AwsUnavailableError


def _request():
    plain = estimator(Wire()).plan(job_name="digits-1").request
    return {**plain, "RoleArn": "arn:aws:iam::123456789012:role/training"}


def test_an_index_that_breaks_after_the_creation_does_not_lose_the_job(wire, index, home, tmp_path):
    def break_it(**_):
        home.index.rename(tmp_path / "aside")
        home.index.mkdir()

    wire.boto.events.register("after-call.sagemaker.CreateTrainingJob", break_it)
    with pytest.raises(HerringboneError, match="the index of jobs"):
        fit(wire)
    home.index.rmdir()
    (tmp_path / "aside").rename(home.index)
    described = look_up(AwsSession.of(wire.boto), "digits-1")
    assert standing(index.get("digits-1"), described, client_lives=False) is Standing.CREATED


def test_a_temporary_folder_that_is_not_there_leaves_no_job(wire, index, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(LaunchError, match=r"job digits-1 could not be prepared: .*gone"):
        fit(wire)
    assert index.all() == []


KILLED = """
import os, sys, time
import boto3
from herringbone import Estimator
boto = boto3.Session()
def stay(**_):
    print("there", flush=True)
    time.sleep(60)
boto.events.register(sys.argv[2] + ".sagemaker.CreateTrainingJob", stay)
Estimator("train.py", image_uri=sys.argv[1], instance_type="ml.m5.large", role="training",
          sagemaker_session=boto).fit(wait=False, job_name="digits-1")
"""


@pytest.mark.parametrize(("at", "expected"), [("before-send", Standing.NEVER_SENT), ("after-call", Standing.CREATED)])
def test_a_client_that_is_killed_around_the_creation(wire, index, at, expected):
    process = subprocess.Popen([sys.executable, "-c", KILLED, IMAGE, at], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "there\n"
        row = index.get("digits-1")
        assert is_alive(row.client)
        process.send_signal(signal.SIGKILL)
    session = AwsSession.of(wire.boto)
    assert standing(row, look_up(session, "digits-1"), client_lives=is_alive(row.client)) is expected
