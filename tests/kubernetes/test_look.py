"""A job as a client sees it: by its ledger, the pods of its attempt, and whether its controller lives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from herringbone.backends.kubernetes.events import AttemptEvents
from herringbone.backends.kubernetes.ledger import parse_ledger, with_ledger
from herringbone.backends.kubernetes.logs import JobLogs
from herringbone.backends.kubernetes.look import look
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.records.index import JobRecord
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
    events = AttemptEvents(JobLogs(cluster, "team-a", list), lambda: row, lambda: None)
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


def test_a_stop_needs_no_controller(tmp_path):
    cluster = cluster_of(tmp_path)
    controller_pod(cluster, phase="Pending")
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 143)
    assert seen(cluster, tmp_path, status="Stopping", secondary_status="Stopping")["status"] == "Stopped"
