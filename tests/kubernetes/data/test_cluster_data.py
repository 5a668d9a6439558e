"""What only the real cluster shows: logs over rotations and after their pods, results, and another machine."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from herringbone import TrainingJob
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_jobs import KINDS, ours

pytestmark = pytest.mark.kubernetes
# More than the second node keeps of a log, in lines of which one is longer than a container runtime takes.
SCRIPT = """
import os, pathlib, time
assert len(pathlib.Path("large.bin").read_bytes()) == 1 << 20
for number in range(3000):
    print("line", number, "x" * 80, flush=True)
print("long", "y" * 40000, flush=True)
go = pathlib.Path("/opt/ml/output/go")
while not go.exists():
    time.sleep(0.2)
for number in range(3000, 3010):
    print("line", number, "x" * 80, flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "model.txt").write_text("weights")
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "plot.txt").write_text("plot")
"""
NUMBERS = [str(number) for number in range(3010)]


def numbers(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith("line")]


def texts(job: TrainingJob, **options: bool) -> list[str]:
    return [line.text for line in job.logs(**options) if line.rank is not None or line.text.startswith("herringbone")]


def test_a_log_outlives_rotations_and_pods_and_another_machine_finds_all(
    submit, cluster: Cluster, results: Path, monkeypatch, tmp_path, herringbone
) -> None:
    Path("large.bin").write_bytes(os.urandom(1 << 20))
    node = {"node_selector": {"kubernetes.io/hostname": "n2"}}
    secret = {"TOKEN": "hush-hush"}
    job = submit(SCRIPT, source_dir=".", instance_count=1, distribution=None, kubernetes=node, environment=secret)
    # One reader is there from the start, and others come after the rotation: while the job runs, and when all is gone.
    followed: list[str] = []
    follower = threading.Thread(target=lambda: followed.extend(texts(job, follow=True)))
    follower.start()
    folder = results / "jobs/Digits-1/hosts/algo-1/ml/output"
    assert [path.name for path in (results / "jobs/Digits-1/input").iterdir()] == ["sourcedir.tar.gz"]
    logs = cluster.folder / "n2/log/pods"
    cluster.wait(lambda: list(logs.glob("team-a_*/host/0.log.*")), "the kubelet rotates the log", 60)
    assert numbers(texts(job)) == NUMBERS[:3000]
    (folder / "go").touch()
    job.wait(60)
    follower.join(30)
    assert job.status == "Completed"
    assert not (results / "jobs/Digits-1/input").exists()
    assert numbers(followed) == NUMBERS
    assert f"long {'y' * 40_000}" in followed

    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "elsewhere"))
    code, output, _ = herringbone("hosts", "jobs", "k8s:team-a", "--json")
    assert (code, json.loads(output)) == (0, [{"TrainingJobName": "Digits-1", "TrainingJobStatus": "Completed"}])
    found = TrainingJob.attach("Digits-1")
    assert found.model_data == "pvc://results/jobs/Digits-1/hosts"
    cluster.kubectl("delete", "jobs", "--all", "--namespace=team-a", "--wait=true")
    cluster.wait(lambda: not cluster.get("pods", "--namespace=team-a"), "the pods are gone")
    # The ConfigMap has the end of a job whose pods somebody has deleted.
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "third"))
    assert herringbone("hosts", "jobs", "k8s:team-a")[0] == 0
    found = TrainingJob.attach("Digits-1")
    assert (found.status, found.model_data) == ("Completed", "pvc://results/jobs/Digits-1/hosts")
    begin = time.monotonic()
    assert texts(found) == followed
    print(f"log without pods after {time.monotonic() - begin:.1f} s")
    assert found.download_model("model").joinpath("model.txt").read_text() == "weights"
    assert found.download("output", "output").joinpath("plot.txt").read_text() == "plot"
    assert "line 3009" in found.download("logs", "logs").joinpath("algo-1.log").read_text()
    everything = cluster.kubectl("get", f"{KINDS},events", "--namespace=team-a", "--output=yaml")
    assert "hush-hush" not in everything
    found.remove()
    cluster.wait(lambda: not ours(cluster), "the job's objects are gone")
    assert (folder.parent / "model/model.txt").exists()
