"""A job whose channels, checkpoints and results are in S3: its pod reads and writes them, with its own credentials."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.data.test_cluster_data import texts
from tests.kubernetes.test_jobs import KINDS

pytestmark = pytest.mark.kubernetes
ROOT = Path(__file__).parents[3]
PORT = 5000
SCRIPT = """
import os, pathlib
print(pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "deep/a.csv").read_text(), flush=True)
checkpoints = pathlib.Path(os.environ["SM_CHECKPOINT_DIR"])
print((checkpoints / "epoch-1.pt").read_text(), flush=True)
(checkpoints / "epoch-2.pt").write_text("second")
pathlib.Path(os.environ["SM_MODEL_DIR"], "model.txt").write_text("weights")
"""


@pytest.fixture
def bucket(cluster: Cluster, tmp_path: Path, monkeypatch) -> Iterator[Any]:
    """The client of a mock of S3 in the control plane's network; pods reach it, and this process finds it, too."""
    boto3 = pytest.importorskip("boto3")
    address = f"http://{cluster.server}:{PORT}"
    program = f"from moto.server import main; main(['-H', '{cluster.server}', '-p', '{PORT}'])"
    variables = {"AWS_ACCESS_KEY_ID": "mock", "AWS_SECRET_ACCESS_KEY": "mock-secret-hush", "AWS_REGION": "us-east-1"}
    for name, value in {**variables, "AWS_ENDPOINT_URL_S3": address}.items():
        monkeypatch.setenv(name, value)
    log = (tmp_path / "s3.log").open("w")
    server = subprocess.Popen(
        [*cluster._network.inside("control"), sys.executable, "-c", program], stdout=log, stderr=log
    )
    client = boto3.client("s3", region_name="us-east-1")

    def is_there() -> bool:
        assert server.poll() is None
        return "Running on" in (tmp_path / "s3.log").read_text()

    cluster.wait(is_there, "the mock of S3", 60)
    client.create_bucket(Bucket="mine")
    yield client
    server.terminate()
    server.wait(60)
    log.close()


@pytest.fixture
def packages(cluster: Cluster, namespace: str) -> Iterator[dict[str, str]]:
    """Claims with what an image of `herringbone images build` has, and the tests' own small one lacks."""
    site = f"/opt/python/lib/{Path(sysconfig.get_path('stdlib')).name}/site-packages"
    folders = {
        "packages": (Path(sysconfig.get_path("purelib")), "/mnt/packages"),
        "sdk": (ROOT / "sdk/herringbone", f"{site}/herringbone"),
    }
    for name, (folder, _) in folders.items():
        cluster.make_volume(name, namespace, folder)
    yield {name: mount for name, (_, mount) in folders.items()}
    for name in folders:
        cluster.kubectl("delete", "persistentvolumeclaim", name, f"--namespace={namespace}", "--wait=false")
        cluster.kubectl("delete", "persistentvolume", name, "--wait=false")


def test_a_job_in_s3(submit, cluster: Cluster, bucket, packages) -> None:
    bucket.put_object(Bucket="mine", Key="data/deep/a.csv", Body=b"1,2")
    bucket.put_object(Bucket="mine", Key="saved/epoch-1.pt", Body=b"first")
    address = f"http://{cluster.server}:{PORT}"
    job = submit(
        SCRIPT,
        inputs="s3://mine/data/",
        instance_count=1,
        distribution=None,
        output_path="s3://mine/jobs",
        checkpoint_s3_uri="s3://mine/saved",
        kubernetes={"volumes": packages},
        environment={
            "AWS_ACCESS_KEY_ID": "mock",
            "AWS_SECRET_ACCESS_KEY": "mock-secret-hush",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": address,
            "PYTHONPATH": packages["packages"],
        },
    )
    job.wait(90)
    lines = texts(job)
    assert (job.status, lines) == ("Completed", ["1,2", "first"]), list(job.logs())
    assert job.model_data == "s3://mine/jobs/Digits-1/hosts"
    everything = cluster.kubectl("get", f"{KINDS},events", "--namespace=team-a", "--output=yaml")
    assert "mock-secret-hush" not in everything
    cluster.kubectl("delete", "jobs", "--all", "--namespace=team-a", "--wait=true")
    cluster.wait(lambda: not cluster.get("pods", "--namespace=team-a"), "the pods are gone")
    assert texts(job) == lines
    assert job.download_model("model").joinpath("model.txt").read_text() == "weights"
    checkpoints = job.download("checkpoints", "checkpoints")
    assert {path.name: path.read_text() for path in checkpoints.iterdir()} == {
        "epoch-1.pt": "first",
        "epoch-2.pt": "second",
    }
