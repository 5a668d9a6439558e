"""A job as a client sees it: by its ledger, the pods of its attempt, and whether its controller lives."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest

from herringbone.backends.kubernetes import backend
from herringbone.backends.kubernetes.backend import KubernetesBackend
from herringbone.backends.kubernetes.events import AttemptEvents
from herringbone.backends.kubernetes.job_columns import look
from herringbone.backends.kubernetes.ledger import parse_ledger, with_ledger
from herringbone.backends.kubernetes.logs import JobLogs
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.records.home import Home
from herringbone.records.index import JobRecord
from herringbone.system.processes import identity, place
from tests.kubernetes.fake_cluster import BEGIN, FakeCluster
from tests.kubernetes.planning import kubernetes_plan
from tests.kubernetes.test_keeper import ACCOUNT, cluster_of, lose, steps

CONTROLLER = "apis/batch/v1/namespaces/team-a/jobs/hb-digits-controller"


def seen(cluster: FakeCluster, folder: Any, **row: Any) -> dict[str, Any]:
    plan = kubernetes_plan(folder, kubernetes=ACCOUNT, max_retry_attempts=3)
    values = {"name": "digits", "backend": "kubernetes", "plan": json.dumps(plan.to_dict()), "created": BEGIN, **row}
    stored = next(each for each in cluster.of("ConfigMap"))
    return look(cluster, "team-a", JobRecord(**values), stored, cluster.of("Pod"))


def controller_pod(cluster: FakeCluster, **status: Any) -> None:
    """Give the controller a pod in some state."""
    labels, owner = ObjectNames("digits").labels("controller"), [{"kind": "Job", "name": "hb-digits-controller"}]
    metadata = {"name": "c", "labels": labels, "creationTimestamp": "1", "ownerReferences": owner}
    cluster._add({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def test_attempts_are_in_the_description_and_a_restart_among_the_states(tmp_path):
    cluster = cluster_of(tmp_path)
    controller_pod(cluster, phase="Running")
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 3)
    columns = seen(cluster, tmp_path)
    assert (columns["status"], columns["secondary_status"]) == ("InProgress", "Restarting")
    description = json.loads(columns["description"])
    (attempt,) = description["Attempts"]
    assert attempt["FailureReason"] == "algo-2 on n2 was lost (exit code 137, killed by SIGKILL)"
    first = description["SecondaryStatusTransitions"][0]
    assert (first["Status"], first["StartTime"]) == ("Restarting", BEGIN + 31)
    assert first["StatusMessage"].startswith("attempt 2 of 4: algo-2 on n2 was lost")
    # Noted once.
    again = json.loads(seen(cluster, tmp_path, description=columns["description"])["description"])
    assert [each["Status"] for each in again["SecondaryStatusTransitions"]].count("Restarting") == 2
    cluster.run_pods()
    columns = seen(cluster, tmp_path, description=columns["description"])
    assert columns["secondary_status"] == "Training"
    row = JobRecord(name="digits", backend="kubernetes", plan="{}", created=BEGIN, description=columns["description"])
    events = AttemptEvents(JobLogs(cluster, "team-a", lambda: ([], 0)), lambda: row, lambda: None)
    assert [event["kind"] for event in events.read()] == ["state", "restart", "state", "state"]
    assert events.read() == []


def test_the_end_is_the_ledgers_and_not_that_of_the_pods(tmp_path):
    cluster = cluster_of(tmp_path)
    controller_pod(cluster, phase="Running")
    lose(cluster)
    columns = seen(cluster, tmp_path, status="InProgress", secondary_status="Training")
    assert set(columns) == {"description"}
    assert "the job's controller has not decided yet" in columns["description"]
    (stored,) = cluster.of("ConfigMap")
    end = {"status": "Failed", "secondary_status": "Failed", "ended": 7.0, "failure": None}
    ledger = msgspec.structs.replace(parse_ledger(stored), end=end)
    cluster.objects[cluster._path(stored)] = with_ledger(stored, ledger)
    assert seen(cluster, tmp_path)["ended"] == 7.0


FAILED = [{"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit"}]


@pytest.mark.parametrize(("conditions", "why"), [(None, "somebody has deleted its Job"), (FAILED, "backoff limit")])
def test_without_a_controller_the_pods_decide_and_a_client_says_so(tmp_path, conditions, why):
    cluster = cluster_of(tmp_path)
    if conditions is None:
        del cluster.objects[CONTROLLER]
    else:
        cluster.objects[CONTROLLER]["status"] = {"conditions": conditions}
    standstill = json.loads(seen(cluster, tmp_path)["description"])["Standstill"]
    assert why in standstill
    lose(cluster)
    assert seen(cluster, tmp_path)["status"] == "Failed"


def test_an_image_without_our_wheel_is_named(tmp_path):
    cluster = cluster_of(tmp_path)
    said = "Error while finding module\nNo module named herringbone.backends"
    last = {"terminated": {"exitCode": 1, "message": f"{said}\n"}}
    waiting = {"name": "host", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}
    controller_pod(cluster, phase="Pending", containerStatuses=[waiting])
    standstill = json.loads(seen(cluster, tmp_path)["description"])["Standstill"]
    assert "No module named herringbone.backends (exit code 1); its image must have our wheel" in standstill


def test_an_account_that_does_not_exist_is_named(tmp_path):
    cluster = cluster_of(tmp_path)
    words = 'error looking up service account team-a/herringbone: serviceaccount "herringbone" not found'
    about = {"involvedObject": {"name": "hb-digits-controller"}, "reason": "FailedCreate", "message": words}
    cluster.events = [about]
    assert words in json.loads(seen(cluster, tmp_path)["description"])["Standstill"]


def test_a_pod_that_cannot_mount_says_so_at_once(tmp_path):
    cluster = cluster_of(tmp_path)
    controller_pod(cluster, phase="Running")
    pod = cluster._of_host("algo-1", 1)[0]
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "host", "state": {"waiting": {}}}]}
    about = {"involvedObject": {"name": pod["metadata"]["name"]}, "type": "Warning", "lastTimestamp": "1"}
    cluster.events = [{**about, "reason": "FailedMount", "message": "secret not found"}]
    columns = seen(cluster, tmp_path)
    assert columns["secondary_status"] == "Starting"
    (state,) = json.loads(columns["description"])["SecondaryStatusTransitions"]
    assert state["StatusMessage"] == "algo-1: FailedMount: secret not found"


def test_a_stop_needs_no_controller(tmp_path):
    cluster = cluster_of(tmp_path)
    controller_pod(cluster, phase="Pending")
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 143)
    assert seen(cluster, tmp_path, status="Stopping", secondary_status="Stopping")["status"] == "Stopped"


def described_by(cluster: FakeCluster, folder: Any, **kubernetes: Any) -> JobRecord:
    """Return the row of a job after a look at it; its client is dead, and has not written that all objects exist."""
    plan = kubernetes_plan(folder, kubernetes=kubernetes, max_retry_attempts=3)
    jobs = KubernetesBackend(Home(folder / "home"), {}, connect=lambda _: cluster)  # type: ignore[arg-type,return-value]
    jobs._home.make()
    values = {"plan": json.dumps(plan.to_dict()), "service": '{"context": null, "namespace": "team-a"}'}
    jobs._index.add(
        JobRecord(
            name="digits",
            backend="kubernetes",
            created=BEGIN,
            client=f"{identity(os.getpid())}1",
            place=place(),
            **values,
        )
    )
    return jobs.describe("digits")


def jobs_of(cluster: FakeCluster, ending: str) -> list[str]:
    return [path for path in cluster.objects if path.rpartition("/")[0].endswith("jobs") and path.endswith(ending)]


def test_a_client_that_died_before_it_had_made_all_hosts_leaves_nothing(tmp_path, monkeypatch):
    cluster, swept = cluster_of(tmp_path), []
    # What it has sent into the claim is reached while the owner exists.
    monkeypatch.setattr(backend, "clear_parts", lambda *_: swept.append(len(cluster.of("ConfigMap"))))
    del cluster.objects[jobs_of(cluster, "algo-2")[0]]
    record = described_by(cluster, tmp_path, **ACCOUNT)
    assert record.status == "Failed"
    assert not cluster.of("ConfigMap")
    assert swept == [1]


def test_a_client_that_died_before_its_jobset_leaves_nothing(tmp_path):
    cluster = cluster_of(tmp_path)
    for path in jobs_of(cluster, "algo-1") + jobs_of(cluster, "algo-2"):
        del cluster.objects[path]
    assert described_by(cluster, tmp_path, workload="jobset").status == "Failed"
    assert not cluster.of("ConfigMap")


def test_a_job_that_was_whole_is_no_killed_submission(tmp_path):
    # The controller has begun another attempt, or has ended the job and cleaned up, before anybody looked.
    restarted, over = cluster_of(tmp_path), cluster_of(tmp_path)
    steps(restarted, 2)
    lose(restarted)
    steps(restarted, 4)
    for host in ("algo-1", "algo-2"):
        over.end(host, 0)
    steps(over, 3)
    for path in jobs_of(over, "algo-1"):
        del over.objects[path]
    controller_pod(restarted, phase="Running")
    for number, (cluster, status) in enumerate(((restarted, "InProgress"), (over, "Completed"))):
        (tmp_path / str(number)).mkdir()
        record = described_by(cluster, tmp_path / str(number), **ACCOUNT)
        assert (record.status, record.client) == (status, None)
        assert len(cluster.of("ConfigMap")) == 1


def test_a_job_that_nobody_has_watched_has_a_bill(tmp_path):
    cluster = cluster_of(tmp_path)
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 0)
    steps(cluster, 3)
    row = {"status": "Completed", "client": None, **seen(cluster, tmp_path)}
    plan = json.dumps({**kubernetes_plan(tmp_path).to_dict(), "hourly_cost": 120.0})
    record = JobRecord(name="digits", backend="kubernetes", created=BEGIN, **{**row, "plan": plan})
    backend = KubernetesBackend(Home(tmp_path / "home"), {}, connect=lambda _: cluster)  # type: ignore[arg-type,return-value]
    # Half a minute of all hosts.
    assert (record.started, record.ended, backend.cost(record)) == (BEGIN, BEGIN + 30, 1.0)


@pytest.mark.parametrize("first", ["client", "controller"])
def test_a_good_end_is_the_same_whoever_sees_it_first(tmp_path, first):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 0)
    if first == "controller":
        steps(cluster, 2)
    record = described_by(cluster, tmp_path, **ACCOUNT)
    ended = parse_ledger(cluster.of("ConfigMap")[0]).end
    steps(cluster, 2)
    assert (record.status, record.ended) == ("Completed", BEGIN + 30)
    assert parse_ledger(cluster.of("ConfigMap")[0]).end == ended
    assert (ended or {})["status"] == "Completed"
