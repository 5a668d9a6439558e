"""Jobs on the real cluster, through the public API: they train, fail, wait and stop, and leave nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from herringbone import TrainingJob
from herringbone_contract.errors import JobNotFoundError, KubernetesError
from tests.kubernetes.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.kubernetes
KINDS = "pods,jobs,services,secrets,configmaps"


def ours(cluster: Cluster) -> list[str]:
    """Return the objects of jobs that are in the namespace."""
    lines = cluster.kubectl("get", KINDS, "--namespace=team-a", "--selector=dev.herringbone/job", "--output=name")
    return lines.split()


def lines_of(job: TrainingJob) -> list[str]:
    return sorted(f"{line.prefix} {line.text}" for line in job.logs() if line.rank is not None)


def test_two_pods_train_and_leave_their_results_in_the_claim(submit, cluster, results) -> None:
    Path("data").mkdir()
    Path("data", "a.csv").write_text("1,2\n")
    # A link inside the folder is followed.
    Path("data", "b.csv").symlink_to("a.csv")
    (results / "shared").mkdir()
    (results / "shared" / "c.csv").write_text("3,4\n")
    job = submit(
        "import os, pathlib\n"
        "data = pathlib.Path(os.environ['SM_CHANNEL_TRAINING'], 'b.csv').read_text().strip()\n"
        "data += ',' + pathlib.Path('/opt/ml/input/data/more/c.csv').read_text().strip()\n"
        "print(os.environ['RANK'], data, os.getuid(), os.environ['TOKEN'], sep=';', flush=True)\n"
        "pathlib.Path(os.environ['SM_MODEL_DIR'], 'model.txt').write_text(os.environ['RANK'])\n",
        inputs={"training": "data", "more": "pvc://results/shared"},
        environment={"TOKEN": "hush-hush"},
        # As clusters do that give each namespace its own; the image has no name for it.
        kubernetes={"user": 1000650000},
    )
    job.wait()
    assert job.status == "Completed"
    assert lines_of(job) == ["[algo-1:0] 0;1,2,3,4;1000650000;hush-hush", "[algo-2:1] 1;1,2,3,4;1000650000;hush-hush"]
    hosts = results / "jobs/Digits-1/hosts"
    assert [(hosts / f"algo-{n}/ml/model/model.txt").read_text() for n in (1, 2)] == ["0", "1"]
    # Secret and Service are gone; pods stay for their logs.
    assert {name.partition("/")[0] for name in ours(cluster)} == {"pod", "job.batch", "configmap"}
    everything = cluster.kubectl("get", f"{KINDS},events", "--namespace=team-a", "--output=yaml")
    assert "hush-hush" not in everything
    job.remove()
    cluster.wait(lambda: not ours(cluster), "the job's objects are gone")


def test_a_folder_that_the_claim_of_a_channel_lacks_is_named(submit, results) -> None:
    job = submit("pass\n", inputs={"training": "pvc://results/no/such"}, instance_count=1)
    wait_until(lambda: job.status == "Failed", 60)
    assert "/opt/ml/input/data/training: its claim has no no/such" in job.describe()["FailureReason"]
    assert not (results / "no").exists()


def test_the_culprit_of_a_failed_job_is_named(submit) -> None:
    job = submit("import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad data')\ntime.sleep(300)\n")
    wait_until(lambda: job.status == "Failed", 60)
    assert job.describe()["FailureReason"].startswith("rank 1 on algo-2: ValueError: bad data")


def test_a_stopped_job_ends_with_its_logs(submit, cluster) -> None:
    job = submit(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(300)\n"
    )
    wait_until(lambda: sum("ready" in line for line in lines_of_running(job)) == 2, 60)
    job.stop()
    wait_until(lambda: job.status == "Stopped", 60)
    assert [line for line in lines_of(job) if "saved" in line] == ["[algo-1:0] saved", "[algo-2:1] saved"]
    wait_until(lambda: not any(map(cluster.processes, ("n1", "n2"))), 20)


def lines_of_running(job: TrainingJob) -> list[str]:
    source = job._backend.logs(job.name)
    return [line.text for line in source.read()]


def test_a_job_that_waits_says_why_and_can_be_stopped(submit, cluster) -> None:
    job = submit("pass\n", gpus=1)
    wait_until(lambda: "Insufficient nvidia.com/gpu" in str(job.describe()), 30)
    assert job.describe()["SecondaryStatus"] == "Pending"
    job.stop()
    wait_until(lambda: job.status == "Stopped", 30)
    cluster.wait(lambda: not [name for name in ours(cluster) if name.startswith(("pod", "job"))], "the pods are gone")


def test_an_image_that_cannot_be_had_is_named_at_once(submit) -> None:
    job = submit("pass\n", image_uri="127.0.0.1:1/none:1")
    wait_until(lambda: "ErrImagePull" in str(job.describe()) or "ImagePullBackOff" in str(job.describe()), 40)
    assert "check image_uri and image_pull_secrets" in str(job.describe())
    job.stop(0)
    assert job.status == "Stopped"


def test_max_run_ends_a_job(submit) -> None:
    job = submit("import time\ntime.sleep(300)\n", max_run=3)
    wait_until(lambda: job.status == "Stopped", 60)
    assert job.describe()["SecondaryStatus"] == "MaxRuntimeExceeded"


def test_pods_that_the_cluster_does_not_make_are_explained(submit) -> None:
    job = submit("pass\n", kubernetes={"priority_class": "none-of-this-name"})
    wait_until(lambda: "no pod is made" in str(job.describe()), 30)
    assert "no PriorityClass with name none-of-this-name was found" in str(job.describe())
    job.stop()
    assert job.status == "Stopped"


def test_a_refused_submission_leaves_nothing(submit, cluster) -> None:
    quota = (
        '{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"services": "0"}}}'
    )
    cluster.kubectl("apply", "--namespace=team-a", "--filename=-", stdin=quota)
    cluster.wait(lambda: "used:" in cluster.kubectl("get", "quota", "--namespace=team-a", "-oyaml"), "a quota", 20)
    with pytest.raises(KubernetesError, match=r"exceeded quota: q, requested: services=1, used: services=0"):
        submit("pass\n")
    cluster.wait(lambda: not ours(cluster), "the job's objects are gone")
    home = Path(os.environ["HERRINGBONE_HOME"])
    assert not (home / "jobs" / "Digits-1").exists()
    with pytest.raises(JobNotFoundError):
        TrainingJob.attach("Digits-1")
