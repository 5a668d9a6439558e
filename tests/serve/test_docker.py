"""The service in front of containers of this machine's engine: `--backend local`."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("boto3")

from tests.serve.test_live import GROUP, PEER_PYTHON, Running, request, train_by_our_own_backend, train_by_the_cli, wait

HERE = Path(__file__).parent
pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]
SCRIPT = """
import os, pathlib, sys, time
data = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"])
kind = os.environ["SM_HP_KIND"]
# As at SageMaker: the input is the job's own, and may change.
(data / "points").chmod(0o755)
(data / "points").write_text((data / "points").read_text() + " 4")
print(kind, (data / "points").read_text(), flush=True)
if kind == "fails":
    raise ValueError("no such kind")
if kind == "stops":
    time.sleep(600)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weight").write_text((data / "points").read_text())
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory, image):
    # The service finds the newest image, which this one is.
    running = Running(tmp_path_factory.mktemp("service"), backend="local")
    (running.folder / "train.py").write_text(SCRIPT)
    with tarfile.open(running.buckets / "mine" / "kinds.tar.gz", "w:gz") as archive:
        archive.add(running.folder / "train.py", "train.py")
    yield running
    running.end()
    assert "Traceback" not in (running.folder / "service.log").read_text()


def job(kind, image):
    members = request(f"docker-{kind}", kind=kind, sagemaker_submit_directory="s3://mine/kinds.tar.gz")
    members["AlgorithmSpecification"] = {"TrainingImage": image, "TrainingInputMode": "File"}
    return members


def messages(service, kind):
    logs = service.client("logs")
    (stream,) = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"docker-{kind}/")["logStreams"]
    answer = logs.get_log_events(logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
    return [event["message"] for event in answer["events"]]


def test_boto3_trains_in_containers(service, image):
    """One job succeeds, one fails and one is stopped, side by side; none changes the data that they share."""
    client = service.client()
    kinds = ("succeeds", "fails", "stops")
    for kind in kinds:
        client.create_training_job(**job(kind, image))
    wait(client, "docker-stops", "Training", seconds=200)
    while "[algo-1:0] stops 1 2 3 4" not in messages(service, "stops"):
        assert client.describe_training_job(TrainingJobName="docker-stops")["TrainingJobStatus"] == "InProgress"
    client.stop_training_job(TrainingJobName="docker-stops")
    answer = wait(client, "docker-succeeds", "Completed", seconds=200)
    with tarfile.open(service.buckets / answer["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://")) as archive:
        assert archive.extractfile("weight").read() == b"1 2 3 4"
    assert messages(service, "succeeds") == ["[algo-1:0] succeeds 1 2 3 4"]
    failure = wait(client, "docker-fails", "Failed", seconds=200)["FailureReason"]
    assert "ValueError: no such kind" in failure
    assert wait(client, "docker-stops", "Stopped", seconds=200)["TrainingJobStatus"] == "Stopped"
    assert (service.buckets / "mine/data/points").read_text() == "1 2 3"
    for kind in kinds:
        # Also removes the layer, in which the kernel has a folder of its own.
        client.delete_training_job(TrainingJobName=f"docker-{kind}")
        assert not list((service.folder / "home").rglob(f"*docker-{kind}*"))


def test_our_own_backend_trains_in_a_container(service, monkeypatch, tmp_path, image):
    train_by_our_own_backend(service, monkeypatch, tmp_path, image)


@pytest.mark.peer
def test_the_cli_of_aws_trains_in_a_container(service, image):
    train_by_the_cli(service, image)


@pytest.mark.peer
def test_the_released_sdk_fits_in_a_container(service):
    if not PEER_PYTHON.exists():
        pytest.skip("tests/peer/setup makes the environment of `sagemaker` 2.x")
    (service.folder / "local").mkdir()
    (service.folder / "local" / "points").write_text("1 2 3")
    config = service.folder / "config.yaml"
    config.write_text("{SchemaVersion: '1.0', SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}}")
    home = {"HOME": str(service.folder), "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config)}
    environment = {"PATH": os.environ["PATH"], **home, **service.environment()}
    command = [PEER_PYTHON, HERE / "fit_v2.py", service.buckets / "mine" / "src" / "train.py", service.folder / "local"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "epoch 1 weight 1.5" in process.stdout
    assert process.stdout.splitlines()[-1] == "model s3://mine/out/by-v2/output/model.tar.gz"
