"""One service on loopback, with unchanged clients and real trainings on `local_process`."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("uvicorn")
boto3 = pytest.importorskip("boto3")
import botocore.session  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

from herringbone.serve.signing.keys import AccessKey, KeyFile  # noqa: E402
from tests.serve.test_members import REQUEST  # noqa: E402

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
GROUP = "/aws/sagemaker/TrainingJobs"
SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--seconds", type=float, default=0)
arguments = parser.parse_args()
weight = 0.0
points = [float(x) for x in pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "points").read_text().split()]
for epoch in range(arguments.epochs):
    weight -= sum(weight - x for x in points) / len(points) / 2
    print(f"epoch {epoch} weight {weight}", flush=True)
print("sleeps", flush=True)
time.sleep(arguments.seconds)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weight").write_text(str(weight))
"""


class Running:
    """A service in a process of its own, that can be killed and started again on the same port."""

    def __init__(self, folder: Path, *, backend: str = "local_process", tls: tuple[Path, Path] | None = None) -> None:
        self.folder, self.backend, self.tls = folder, backend, tls
        self.buckets = folder / "buckets"
        for name, text in {"mine/data/points": "1 2 3", "mine/src/train.py": SCRIPT}.items():
            path = self.buckets / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
        with tarfile.open(self.buckets / "mine" / "sourcedir.tar.gz", "w:gz") as archive:
            archive.add(self.buckets / "mine" / "src" / "train.py", "train.py")
        keys = KeyFile(folder / "keys.json")
        self.ada, self.bob = keys.add("ada"), keys.add("bob")
        self.port = 0
        self.start()

    def start(self) -> None:
        options = {"--buckets": self.buckets, "--keys": self.folder / "keys.json", "--port": self.port}
        options |= {} if self.tls is None else {"--certificate": self.tls[0], "--private-key": self.tls[1]}
        command = [sys.executable, "-m", "herringbone", "serve", "--backend", self.backend]
        command += ["--account", "123456789012", *(str(word) for option in options.items() for word in option)]
        environment = {**os.environ, "HERRINGBONE_HOME": str(self.folder / "home"), "PYTHONPATH": str(ROOT)}
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert "://127.0.0.1:" in self.address, (self.folder / "service.log").read_text()
        self.port = int(self.address.rpartition(":")[2])

    def end(self, *, kill: bool = False) -> None:
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": self.ada.key_id,
            "AWS_SECRET_ACCESS_KEY": self.ada.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nowhere",
            "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        }

    def client(self, name="sagemaker", key=None, region="us-east-1", **config):
        key = key or self.ada
        config = Config(retries={"mode": "standard", "total_max_attempts": 10}, **config)
        return boto3.Session(key.key_id, key.secret, region_name=region).client(
            name, endpoint_url=self.address, config=config
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("service"))
    yield running
    running.end()
    # Each call that failed inside has left a traceback.
    assert "Traceback" not in (running.folder / "service.log").read_text()


def request(name, **hyperparameters):
    values = {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://mine/sourcedir.tar.gz",
        "epochs": "2",
    }
    return {
        **REQUEST,
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::123456789012:role/me",
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "HyperParameters": {**values, **hyperparameters},
    }


def wait(client, name, *states, seconds=100.0):
    deadline = time.monotonic() + seconds
    while True:
        answer = client.describe_training_job(TrainingJobName=name)
        if answer["SecondaryStatus"] in states or answer["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
            assert answer["SecondaryStatus"] in states, answer
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.3)


def test_boto3_trains(service):
    client, logs = service.client(), service.client("logs")
    assert service.client("sts").get_caller_identity()["Arn"] == "arn:aws:iam::123456789012:user/ada"
    with pytest.raises(ClientError, match="this service has us-east-1"):
        service.client("sts", region="eu-west-1").get_caller_identity()
    arn = client.create_training_job(**request("by-boto3"), Tags=[{"Key": "team", "Value": "a"}])["TrainingJobArn"]
    assert arn == "arn:aws:sagemaker:us-east-1:123456789012:training-job/by-boto3"
    with pytest.raises(ClientError, match="exists already"):
        client.create_training_job(**request("by-boto3"))
    answer = wait(client, "by-boto3", "Completed")
    states = answer["SecondaryStatusTransitions"]
    assert [state["Status"] for state in states] == ["Starting", "Training", "Uploading", "Completed"]
    assert all(before["EndTime"] == after["StartTime"] for before, after in pairwise(states))
    assert answer["CreationTime"] <= answer["TrainingStartTime"] <= answer["TrainingEndTime"]
    model = service.buckets / answer["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://")
    with tarfile.open(model) as archive:
        assert archive.extractfile("weight").read() == b"1.5"
    (stream,) = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="by-boto3/")["logStreams"]
    events = logs.get_log_events(logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
    assert [event["message"] for event in events["events"]] == [
        "[algo-1:0] epoch 0 weight 1.0",
        "[algo-1:0] epoch 1 weight 1.5",
        "[algo-1:0] sleeps",
    ]
    found = logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix="by-boto3", filterPattern='"epoch 1"')
    assert [event["message"] for event in found["events"]] == ["[algo-1:0] epoch 1 weight 1.5"]
    filters = [{"Name": "Tags.team", "Operator": "Equals", "Value": "a"}]
    (hit,) = client.search(Resource="TrainingJob", SearchExpression={"Filters": filters})["Results"]
    assert hit["TrainingJob"]["TrainingJobName"] == "by-boto3"
    assert service.client(key=service.bob).list_training_jobs()["TrainingJobSummaries"] == []
    # The protocols of boto3's releases.
    for protocol in ("json", "query", "smithy-rpc-v2-cbor"):
        cloudwatch = client_of(service, "cloudwatch", protocol)
        asked = {
            "Namespace": GROUP,
            "MetricName": "weight",
            "Dimensions": [{"Name": "TrainingJobName", "Value": "by-boto3"}],
            "StartTime": answer["TrainingStartTime"],
            "EndTime": answer["TrainingEndTime"] + timedelta(minutes=1),
            "Period": 600, "Statistics": ["Average", "SampleCount"],
        }  # fmt: skip
        found = cloudwatch.get_metric_statistics(**asked)["Datapoints"]
        assert sum(point["SampleCount"] for point in found) == 2
        assert found[0].keys() >= {"Average", "SampleCount", "Timestamp", "Unit"}
        assert abs(found[0]["Timestamp"] - answer["TrainingStartTime"]) < timedelta(minutes=1)
        with pytest.raises(ClientError) as caught:
            cloudwatch.get_metric_statistics(**{**asked, "Period": 61})
        assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"
        with pytest.raises(ClientError) as caught:
            cloudwatch.list_metrics()
        assert "this service has no such operation" in caught.value.response["Error"]["Message"]


def client_of(service, name, protocol):
    """Return a client that speaks one protocol, whichever the installed release chooses."""
    session = botocore.session.get_session()
    metadata = session.get_component("data_loader").load_service_model(name, "service-2")["metadata"]
    if protocol == "smithy-rpc-v2-cbor" and protocol not in metadata.get("protocols", ()):
        pytest.skip("this release of botocore speaks no CBOR")
    metadata |= {"protocol": protocol, "protocols": [protocol], "targetPrefix": "GraniteServiceVersion20100801"}
    return session.create_client(
        name,
        "us-east-1",
        endpoint_url=service.address,
        aws_access_key_id=service.ada.key_id,
        aws_secret_access_key=service.ada.secret,
    )


def test_a_killed_service_loses_no_job(service):
    """The job runs on, its log stays whole, and a repeated creation does not run it a second time."""
    client = service.client()
    # boto3's retries of one call share this id; here, the answer to the first one gets lost.
    client.meta.events.register_last(
        "request-created",
        lambda request, **_: request.headers.replace_header("amz-sdk-invocation-id", "the same"),
    )
    arn = client.create_training_job(**request("survives", seconds="6000"))["TrainingJobArn"]
    wait(client, "survives", "Training")
    service.end(kill=True)
    service.start()
    assert client.create_training_job(**request("survives", seconds="6000"))["TrainingJobArn"] == arn
    wait(client, "survives", "Training")
    client.stop_training_job(TrainingJobName="survives")
    answer = wait(client, "survives", "Stopped")
    assert answer["TrainingJobStatus"] == "Stopped"
    client.delete_training_job(TrainingJobName="survives")
    with pytest.raises(ClientError, match="not found"):
        client.describe_training_job(TrainingJobName="survives")


def test_one_client_of_s3(service):
    """Uploads, copies and presigned addresses go to the same port, with the same keys."""
    unknown = AccessKey(name="unknown", key_id="HBAKNONE", secret=service.ada.secret)
    s3, foreign = service.client("s3"), service.client("s3", unknown)
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["mine", "sagemaker-us-east-1-123456789012"]
    # More than eight megabytes go in parts.
    s3.upload_fileobj(io.BytesIO(b"x" * (9 << 20)), "mine", "large")
    assert (service.buckets / "mine" / "large").stat().st_size == 9 << 20
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        foreign.list_buckets()
    with pytest.raises(ClientError, match="403"):
        s3.head_bucket(Bucket="mine", ExpectedBucketOwner="111111111111")
    values = {"Bucket": "mine", "Key": "data/points"}
    with pytest.raises(HTTPError) as refused:
        urlopen(s3.generate_presigned_url("get_object", Params=values))  # noqa: S310
    # boto3 presigns with version 2 by default.
    assert b'signature_version="s3v4"' in refused.value.read()
    signed = service.client("s3", signature_version="s3v4")
    assert urlopen(signed.generate_presigned_url("get_object", Params=values)).read() == b"1 2 3"  # noqa: S310
    lines = [json.loads(line) for line in (service.folder / "home/service/audit.log").read_text().splitlines()]
    of_s3 = [{**line, "time": "", "id": "", "client": ""} for line in lines if line.get("service") == "s3"]
    none = {"time": "", "id": "", "client": "", "service": "s3"}
    refusal = {"operation": "REST.GET.SERVICE", "resource": "/", "status": 403, "error": "InvalidAccessKeyId"}
    assert {**none, **refusal} in of_s3
    got = {"key": "ada", "operation": "REST.GET.OBJECT", "resource": "/mine/data/points", "status": 200}
    assert {**none, **got} in of_s3


def train_by_our_own_backend(service, monkeypatch, tmp_path, image):
    """Submit code and data through the front into the default bucket, and read the model back from it."""
    from herringbone import PyTorch

    for name, value in service.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "client"))
    (tmp_path / "code").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "data" / "points").write_text("4 5 6")
    job = PyTorch(
        "train.py",
        source_dir=str(tmp_path / "code"),
        role="arn:aws:iam::123456789012:role/me",
        image_uri=image,
        instance_type="ml.m5.large",
        hyperparameters={"epochs": 1},
    ).fit({"training": str(tmp_path / "data")}, job_name="submitted-by-ours")
    assert job.status == "Completed"
    assert job.model_data.startswith("s3://sagemaker-us-east-1-123456789012/")
    bucket, _, key = job.model_data.removeprefix("s3://").partition("/")
    model = io.BytesIO(service.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())
    with tarfile.open(fileobj=model) as archive:
        assert archive.extractfile("weight").read() == b"2.5"


def test_our_own_backend_submits_to_the_service(service, monkeypatch, tmp_path):
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-cpu-py312"
    train_by_our_own_backend(service, monkeypatch, tmp_path, image)


def test_our_own_backend_follows_a_job_at_the_service(service, monkeypatch, tmp_path):
    from herringbone import TrainingJob

    for name, value in service.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "client"))
    service.client().create_training_job(**request("by-ours"))
    job = TrainingJob.attach("by-ours")
    job.wait(timeout=100)
    assert job.status == "Completed"
    assert [line.text for line in job.logs(rank=0)][:2] == ["epoch 0 weight 1.0", "epoch 1 weight 1.5"]
    assert job.model_data == "s3://mine/out/by-ours/output/model.tar.gz"


# `sagemaker` asks for the log every 10 s, and for the state every 30 s.
@pytest.mark.timeout(400)
@pytest.mark.peer
def test_the_released_sdk_fits(service):
    if not PEER_PYTHON.exists():
        pytest.skip("tests/peer/setup makes the environment of `sagemaker` 2.x")
    (service.folder / "local").mkdir()
    (service.folder / "local" / "points").write_text("1 2 3")
    command = [PEER_PYTHON, HERE / "fit_v2.py", service.buckets / "mine" / "src" / "train.py", service.folder / "local"]
    # Without telemetry, which goes to an address of AWS's.
    config = service.folder / "config.yaml"
    config.write_text("{SchemaVersion: '1.0', SageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}}")
    home = {"HOME": str(service.folder), "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config)}
    environment = {"PATH": os.environ["PATH"], **home, **service.environment()}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "epoch 1 weight 1.5" in process.stdout
    assert "Training seconds: " in process.stdout
    # CloudWatch's average of a minute, of 1.0 and 1.5.
    assert re.search(r"weights \[1\.", process.stdout)
    assert process.stdout.splitlines()[-1] == "model s3://mine/out/by-v2/output/model.tar.gz"


def train_by_the_cli(service, image):
    """Upload data, submit, list the job and fetch its model; the second `s3 sync` lists and compares."""
    if not (aws := PEER_PYTHON.with_name("aws")).exists():
        pytest.skip("tests/peer/setup installs AWS's CLI")

    def run(*words):
        process = subprocess.run([aws, *words], env=environment, capture_output=True, text=True, timeout=100)
        assert process.returncode == 0, process.stderr
        return process.stdout

    # Its output does not depend on the settings of this machine's user.
    home = {"PATH": os.environ["PATH"], "HOME": str(service.folder), "AWS_PAGER": "", "AWS_DEFAULT_OUTPUT": "json"}
    environment = {**home, **service.environment()}
    source = service.folder / "cli"
    (source / "data").mkdir(parents=True)
    (source / "data" / "points").write_text("7 8 9")
    assert run("s3", "sync", str(source), "s3://mine/by-cli", "--no-progress").startswith("upload: ")
    assert run("s3", "sync", str(source), "s3://mine/by-cli", "--no-progress") == ""
    channel = REQUEST["InputDataConfig"][0] | {"DataSource": {"S3DataSource": {
        "S3DataType": "S3Prefix", "S3Uri": "s3://mine/by-cli/data"}}}  # fmt: skip
    algorithm = {"TrainingImage": image, "TrainingInputMode": "File"}
    members = request("by-cli", epochs="1") | {"InputDataConfig": [channel], "AlgorithmSpecification": algorithm}
    run("sagemaker", "create-training-job", "--cli-input-json", json.dumps(members))
    wait(service.client(), "by-cli", "Completed")
    (job,) = json.loads(run("sagemaker", "list-training-jobs", "--name-contains", "by-cli"))["TrainingJobSummaries"]
    assert job["TrainingJobStatus"] == "Completed"
    run("s3", "cp", "s3://mine/out/by-cli/output/model.tar.gz", str(source / "model.tar.gz"))
    with tarfile.open(source / "model.tar.gz") as archive:
        assert archive.extractfile("weight").read() == b"4.0"


@pytest.mark.peer
def test_the_cli_of_aws(service):
    train_by_the_cli(service, REQUEST["AlgorithmSpecification"]["TrainingImage"])


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000, b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n{", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", b"403"),
        (b"\x16\x03\x01 no HTTP", b"400"),
    ],
    ids=["head", "body", "unsigned", "garbage"],
)
def test_requests_that_no_client_sends(service, head, answer):
    with closing(socket.create_connection(("127.0.0.1", service.port), timeout=60)) as connection:
        connection.sendall(head)
        assert connection.recv(65_536).split()[1] == answer


def test_a_client_that_sends_no_headers_is_cut_off(service):
    """Also one that has sent a whole request before."""
    with closing(socket.create_connection(("127.0.0.1", service.port), timeout=60)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        answer = b""
        # The body may come later than the headers.
        while b"is not signed" not in answer:
            answer += (part := connection.recv(65_536))
            assert part, answer
        connection.sendall(b"POST / HTTP/1.1\r\n")
        before = time.monotonic()
        for _ in range(3):
            time.sleep(1)
            # A byte now and then keeps the connection alive, but not for ever.
            connection.sendall(b"x")
        assert connection.recv(1000) == b""
        assert 5 < time.monotonic() - before < 40
