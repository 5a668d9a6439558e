"""What S3 has in a job: fetched and sent as in a pod, and brought to this machine, against a mock of S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from herringbone.aws.session import AwsSession
from herringbone.backends.kubernetes.data import pod_s3
from herringbone.backends.kubernetes.data.claim_results import RunningLogs
from herringbone.backends.kubernetes.data.packing import fetch_part
from herringbone.backends.kubernetes.data.pod_s3 import S3Order
from herringbone.backends.kubernetes.data.s3_results import S3Results
from herringbone.backends.kubernetes.files import job_files
from herringbone.plan.inputs import Channel, TrainingInput
from herringbone.records.home import JobFolder
from herringbone.s3 import sync
from herringbone_contract.errors import InputError
from herringbone_contract.resources import HostGroup, ResourceConfig
from tests.aws_mock import s3, s3_server
from tests.kubernetes.data.test_claim_results import LOG, record_of
from tests.kubernetes.planning import kubernetes_plan

__all__ = ["s3", "s3_server"]
OPTIONS: dict[str, Any] = {"output_path": "s3://mine/jobs", "checkpoint_s3_uri": "s3://mine/saved"}


@pytest.fixture
def base(tmp_path) -> Path:
    """A host's base folder, as the program of a pod makes it."""
    for name in ("input/data", "model", "output/data", "output/log/a-uid", "checkpoints"):
        (tmp_path / "ml" / name).mkdir(parents=True)
    return tmp_path / "ml"


@pytest.fixture
def job(s3, tmp_path) -> Path:
    """The folder of the Secret."""
    (folder := tmp_path / "job").mkdir()
    return folder


def write_secret(job: Path, **options: Any) -> Path:
    """Write the files of a job's Secret, which has the user's variables; return the one of S3's part."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    plan = kubernetes_plan(job.parent, environment=environment, **{**OPTIONS, **options})
    with job_files(plan, b"key", exclude=job.parent / "home") as (_, secret, _):
        for name, content in secret.items():
            (job / name).write_bytes(content)
    (job / "ended").touch()
    return job / "g0.s3.json"


def run_in_pod(verb: str, job: Path, base: Path, **options: Any) -> int:
    """Run the program of a pod, whose own variables have no credentials."""
    program = (
        "import sys, pathlib; from herringbone.backends.kubernetes.data import pod_s3; "
        "sys.exit(pod_s3.main(sys.argv[3:], *map(pathlib.Path, sys.argv[1:3])))"
    )
    order = write_secret(job, **options)
    resources = (job / "g0.resourceconfig.json").read_text().replace("@HOST@", "algo-1")
    (base / "input/config").mkdir()
    (base / "input/config/resourceconfig.json").write_text(resources)
    words = (sys.executable, "-c", program, str(base), str(job / "ended"), verb, str(order), "algo-1")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(words, env=variables).returncode


def put(s3: Any, key: str, content: bytes) -> None:
    s3.put_object(Bucket="mine", Key=key, Body=content)


def keys(s3: Any, prefix: str) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket="mine", Prefix=prefix).get("Contents", ())
    return {each["Key"]: s3.get_object(Bucket="mine", Key=each["Key"])["Body"].read() for each in found}


def test_channels_and_checkpoints_are_there_before_the_ranks(s3, job, base):
    put(s3, "data/a.csv", b"1")
    put(s3, "data/deep/b.csv", b"2")
    put(s3, "saved/epoch-1.pt", b"c")
    shared = TrainingInput("s3://mine/data/", distribution="ShardedByS3Key")
    assert run_in_pod("fetch", job, base, inputs={"train": "s3://mine/data/", "part": shared}) == 0
    files = {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}
    del files["input/config/resourceconfig.json"]
    assert files == {
        "input/data/train/a.csv": b"1",
        "input/data/train/deep/b.csv": b"2",
        "input/data/part/a.csv": b"1",
        "checkpoints/epoch-1.pt": b"c",
    }


@pytest.mark.parametrize(
    ("host", "groups", "names"),
    [
        ("algo-1", None, ["a", "c"]),
        ("algo-2", None, ["b"]),
        ("algo-2", ("second",), ["a", "b", "c"]),
    ],
)
def test_hosts_share_a_channel(host, groups, names):
    resources = ResourceConfig(
        host, ("algo-1", "algo-2"), groups=(HostGroup("first", "", ("algo-1",)), HostGroup("second", "", ("algo-2",)))
    )
    given = TrainingInput("s3://mine/data/", distribution="ShardedByS3Key", instance_groups=groups)
    files: dict[str, Any] = dict.fromkeys("abc")
    assert list(pod_s3.share_of(Channel(name="train", input=given), files, host, resources)) == names


def test_a_host_without_a_share_is_named():
    resources = ResourceConfig("algo-2", ("algo-1", "algo-2"))
    channel = Channel(name="train", input=TrainingInput("s3://mine/data/", distribution="ShardedByS3Key"))
    files: dict[str, Any] = {"a": None}
    with pytest.raises(InputError, match=r"channel 'train': ShardedByS3Key divides 1 files .* algo-2 would train on"):
        pod_s3.share_of(channel, files, "algo-2", resources)


def test_a_channel_that_is_not_there_is_the_failure_of_the_host(s3, job, base):
    assert run_in_pod("fetch", job, base, inputs={"train": "s3://mine/none/"}) == 1
    failure = json.loads((base / "output/failure.json").read_text())
    assert failure["host"] == "algo-1"
    assert "channel 'train': s3://mine/none/: no object has a key that begins so" in failure["message"]


def test_results_are_sent_at_the_end_and_fetched_from_there(s3, job, base, tmp_path, capfd):
    put(s3, "jobs/digits/hosts/algo-1/ml/model/of-an-earlier-attempt", b"old")
    put(s3, "jobs/digits/hosts/algo-1/ml/output/log/a-uid/pod-0.log", b"earlier")
    (base / "model/deep").mkdir()
    (base / "model/deep/a.pt").write_bytes(b"weights")
    (base / "model/secret").symlink_to("/etc/shadow")
    (base / "output/data/plot").write_bytes(b"plot")
    (base / "output/log/a-uid/pod-1.log").write_text(LOG)
    (base / "checkpoints/epoch-2.pt").write_bytes(b"c")
    assert run_in_pod("keep", job, base) == 0
    assert keys(s3, "") == {
        "jobs/digits/hosts/algo-1/ml/model/deep/a.pt": b"weights",
        "jobs/digits/hosts/algo-1/ml/output/data/plot": b"plot",
        "jobs/digits/hosts/algo-1/ml/output/log/a-uid/pod-0.log": b"earlier",
        "jobs/digits/hosts/algo-1/ml/output/log/a-uid/pod-1.log": LOG.encode(),
        "saved/epoch-2.pt": b"c",
    }
    assert "secret in model is left out: it is a link, and S3 has files alone" in capfd.readouterr().err

    nobody = RunningLogs(None, "team-a", dict, lambda: "a-uid")  # type: ignore[arg-type]
    results = S3Results(kubernetes_plan(tmp_path, **OPTIONS), nobody)
    record, folder = record_of(tmp_path, **OPTIONS), JobFolder(tmp_path / "folder")
    for part, name in (("model", "deep/a.pt"), ("output", "plot"), ("checkpoints", "epoch-2.pt")):
        (into := tmp_path / part).mkdir()
        assert (fetch_part(results, record, folder, part, into) / name).exists()
    assert results.pods() == [("pod-0", "algo-1"), ("pod-1", "algo-1")]
    assert list(results.lines("pod-1", "algo-1", 2)) == [LOG.encode().splitlines()[1]]
    assert list(results.lines("pod-2", "algo-1", 1)) == []


def test_checkpoints_are_sent_while_the_ranks_run(s3, base, monkeypatch):
    monkeypatch.setattr(pod_s3, "_SCAN_SECONDS", 0.0)
    monkeypatch.setattr(pod_s3, "_LOOK_SECONDS", 0.05)
    (base / "checkpoints/epoch-1.pt").write_bytes(b"c")
    order = S3Order(job="digits", checkpoints="s3://mine/saved")
    # Over as soon as the checkpoint is in the bucket.
    pod_s3.keep(order, "algo-1", base, pod_s3.Buckets(AwsSession()), lambda: bool(keys(s3, "saved/")))
    assert keys(s3, "") == {"saved/epoch-1.pt": b"c"}


def test_results_that_cannot_be_sent_fail_the_host(job, base, monkeypatch):
    monkeypatch.setattr(sync, "_PAUSE_SECONDS", 0.0)
    (base / "model/a.pt").write_bytes(b"weights")
    order = write_secret(job, output_path="s3://not-there/jobs")
    assert pod_s3.main(["keep", str(order), "algo-1"], base, job / "ended") == 1
    assert "not-there" in json.loads((base / "output/failure.json").read_text())["message"]
