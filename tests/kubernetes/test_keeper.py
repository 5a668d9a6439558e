"""The controller of a job, on a cluster that is a dict: what it decides, and that it may end between any two steps."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from herringbone.backends.kubernetes.attempts.hosts import NotNowError
from herringbone.backends.kubernetes.attempts.keeper import JobKeeper
from herringbone.backends.kubernetes.ledger import change
from herringbone_contract.errors import KubernetesError
from herringbone_contract.failure import Failure
from tests.kubernetes.fake_cluster import BEGIN, FILES, CrashError, FakeCluster
from tests.kubernetes.planning import kubernetes_plan

ACCOUNT = {"service_account": "herringbone"}


def cluster_of(folder: Path, *, nodes: tuple[str, ...] = ("n1", "n2"), **options: Any) -> FakeCluster:
    plan = kubernetes_plan(folder, kubernetes=ACCOUNT, **{"max_retry_attempts": 3, **options})
    cluster = FakeCluster(plan, nodes=nodes)
    cluster.run_pods()
    return cluster


def keeper_of(cluster: FakeCluster) -> JobKeeper:
    return JobKeeper(cluster, "team-a", "digits", clock=lambda: cluster.now)


def steps(cluster: FakeCluster, count: int = 6, seconds: float = 1.0) -> None:
    """Take some steps, each by a controller that has just begun: nothing may be in its memory alone."""
    for _ in range(count):
        keeper_of(cluster).step()
        cluster.now += seconds


def end_of(cluster: FakeCluster) -> dict[str, Any] | None:
    return json.loads(cluster.data["end"]) if "end" in cluster.data else None


def attempts(cluster: FakeCluster) -> list[dict[str, Any]]:
    failed: list[dict[str, Any]] = json.loads(cluster.data.get("attempts", "{}")).get("failed", [])
    return failed


def names(cluster: FakeCluster, kind: str) -> list[str]:
    return sorted(each["metadata"]["name"] for each in cluster.of(kind))


def lose(cluster: FakeCluster, host: str = "algo-2", attempt: int = 1) -> None:
    """Kill a host's supervisor: the other one says that it has lost it."""
    lost = Failure(host=host, exit_code=1, message=f"lost contact with {host}").to_json()
    for other in {"algo-1", "algo-2"} - {host}:
        cluster.end(other, 1, attempt=attempt, at=31, message=lost)
    cluster.end(host, 137, attempt=attempt)


def test_all_that_end_well_complete_the_job(tmp_path):
    cluster = cluster_of(tmp_path)
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 0)
    steps(cluster, 3)
    assert end_of(cluster) == {
        "status": "Completed",
        "secondary_status": "Completed",
        "ended": BEGIN + 30,
        "failure": None,
    }
    assert (names(cluster, "Secret"), names(cluster, "Service")) == ([], [])
    # With their logs.
    assert len(cluster.of("Pod")) == 2


def test_a_lost_host_is_followed_by_an_attempt_with_a_key_of_its_own(tmp_path):
    cluster = cluster_of(tmp_path, max_run=3600)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 3)
    assert [attempt["why"] for attempt in attempts(cluster)] == [
        "algo-2 on n2 was lost (exit code 137, killed by SIGKILL)"
    ]
    assert names(cluster, "Secret") == names(cluster, "Service") == ["hb-digits-a2"]
    (secret,) = cluster.of("Secret")
    assert set(secret["data"]) == set(FILES)
    assert secret["data"]["private.json"] != base64.b64encode(FILES["private.json"]).decode()
    first = next(job for job in cluster.of("Job") if job["metadata"]["name"] == "hb-digits-a2-algo-1")
    # The rest of the time, for all attempts together.
    assert first["spec"]["template"]["spec"]["containers"][0]["args"][:4] == [
        *("train", "3569", "max_run of 3600 s is over: stopping", "g0")
    ]
    assert "hb-digits-a1-algo-1" in names(cluster, "Job")
    cluster.run_pods()
    steps(cluster, 2)
    for host in ("algo-1", "algo-2"):
        cluster.end(host, 0, attempt=2, at=50)
    steps(cluster, 2)
    assert end_of(cluster)["status"] == "Completed"


def crashes() -> list[tuple[int, bool]]:
    return [(number, is_after) for number in range(1, 16) for is_after in (False, True)]


@pytest.mark.parametrize(("crash_at", "is_after"), crashes())
def test_another_controller_goes_on_wherever_the_first_one_ended(tmp_path, crash_at, is_after):
    cluster = cluster_of(tmp_path)
    cluster.crash_at, cluster.is_after = crash_at, is_after
    for round_ in range(24):
        try:
            done = keeper_of(cluster).step()
        except CrashError:
            continue
        cluster.run_pods()
        if round_ == 4:
            lose(cluster)
        if round_ >= 12:
            for host in ("algo-1", "algo-2"):
                cluster.end(host, 0, attempt=2, at=50)
        cluster.now += 1
        if done:
            break
    assert cluster.changes >= crash_at or crash_at > 12
    assert (end_of(cluster)["status"], len(attempts(cluster)), cluster.data["attempt"]) == ("Completed", 1, "2")
    assert not cluster.of("Secret") + cluster.of("Service")
    assert {pod["status"]["phase"] for pod in cluster.of("Pod")} == {"Failed", "Succeeded"}


def test_another_pod_in_the_place_of_one_that_ran_is_a_lost_host(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    cluster.remove_pod("algo-2")
    # The Job controller replaces it, and the new pod would wait for peers that have gone.
    cluster.run_pods()
    keeper = keeper_of(cluster)
    keeper.step()
    assert not attempts(cluster)
    lost = Failure(host="algo-2", exit_code=1, message="lost contact with algo-2").to_json()
    cluster.end("algo-1", 1, message=lost)
    cluster.now = BEGIN + 31
    keeper.step()
    # It may still run for as long as it takes to notice the loss.
    assert not attempts(cluster)
    cluster.now += 30
    keeper.step()
    (attempt,) = attempts(cluster)
    assert attempt["why"].startswith("algo-2 on n2 was lost (its pod was deleted, as `kubectl delete pod`")
    steps(cluster, 2)
    assert not [job for job in names(cluster, "Job") if job == "hb-digits-a1-algo-2"]


def test_the_clusters_own_words_are_the_cause(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    cluster.events = [
        {"reason": "TaintManagerEviction", "message": "Marking for deletion Pod"},
        {"reason": "NodeNotReady", "message": "Node is not ready"},
    ]
    cluster.mark_deleted("algo-2", is_away=True)
    keeper = keeper_of(cluster)
    keeper.step()
    # The other host still trains with it, and is told at once to save and to end.
    assert [command for _, command in cluster.commands] == ["5"]
    cluster.end("algo-1", 143)
    cluster.now = BEGIN + 40
    keeper.step()
    assert not attempts(cluster)
    cluster.now += 30
    keeper.step()
    (attempt,) = attempts(cluster)
    why = "algo-2 on n2 was lost (NodeNotReady: Node is not ready; its node is away, and it may still run there)"
    assert attempt["why"] == why


def test_a_host_alone_on_a_node_that_is_away_is_waited_for(tmp_path):
    cluster = cluster_of(tmp_path, instance_count=1)
    steps(cluster, 2)
    cluster.mark_deleted("algo-1", is_away=True)
    keeper = keeper_of(cluster)
    for _ in range(5):
        keeper.step()
        cluster.now += 600
    assert not attempts(cluster)
    cluster.end("algo-1", 143)
    steps(cluster, 2)
    assert attempts(cluster)[0]["why"].startswith("algo-1 on n1 was lost (exit code 143, killed by SIGTERM: its pod")


def test_a_pod_that_is_deleted_saves_first(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    cluster.mark_deleted("algo-2")
    steps(cluster, 3)
    assert (cluster.commands, attempts(cluster)) == ([], [])
    cluster.end("algo-1", 143)
    cluster.end("algo-2", 143, at=31)
    steps(cluster, 2)
    assert attempts(cluster)[0]["blamed"] == ["n2"]


def test_a_node_that_loses_two_attempts_is_excluded(tmp_path):
    cluster = cluster_of(tmp_path, nodes=("n1", "n2", "n3"))
    for attempt in (1, 2):
        steps(cluster, 2)
        lose(cluster, attempt=attempt)
        steps(cluster, 3)
        cluster.run_pods()
    assert [attempt["excluded"] for attempt in attempts(cluster)] == [[], ["n2"]]
    assert {pod["spec"]["nodeName"] for pod in cluster.pods("hb-digits-a3-algo-2")} == {"n3"}


def test_an_attempt_goes_on_with_fewer_hosts_when_some_find_no_node(tmp_path):
    cluster = cluster_of(tmp_path, min_instance_count=1)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 3)
    cluster.run_pods(unplaced=1)
    steps(cluster, 3)
    assert cluster.data["attempt"] == "2"
    cluster.now += 60
    steps(cluster, 3)
    assert [name for name in names(cluster, "Job") if "-a3-" in name] == ["hb-digits-a3-algo-1"]
    assert not [name for name in names(cluster, "Job") if "-a2-" in name]
    # It takes no attempt of the user's.
    assert len(attempts(cluster)) == 1
    resources = cluster.of("Secret")[0]["data"]["g0.resourceconfig.json"]
    assert json.loads(base64.b64decode(resources))["hosts"] == ["algo-1"]
    cluster.run_pods()
    steps(cluster, 2)
    cluster.end("algo-1", 0, attempt=3, at=50)
    steps(cluster, 2)
    assert end_of(cluster)["status"] == "Completed"


def test_a_stop_is_passed_on_once_and_no_attempt_follows(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    change(cluster, "team-a", "hb-digits", lambda ledger: msgspec.structs.replace(ledger, stop=7.0))
    keeper = keeper_of(cluster)
    for _ in range(3):
        keeper.step()
    assert [command for _, command in cluster.commands] == ["7", "7"]
    lose(cluster)
    keeper.step()
    assert (end_of(cluster)["status"], attempts(cluster)) == ("Stopped", [])


def test_a_stop_during_a_restart_makes_no_objects(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 1)
    assert cluster.data["attempt"] == "2"
    change(cluster, "team-a", "hb-digits", lambda ledger: msgspec.structs.replace(ledger, stop=7.0))
    steps(cluster, 1)
    assert end_of(cluster)["status"] == "Stopped"
    assert not [name for name in names(cluster, "Job") if "-a2-" in name]


def test_no_attempt_follows_when_the_time_of_all_is_over(tmp_path):
    cluster = cluster_of(tmp_path, max_run=30)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 2)
    assert (end_of(cluster)["status"], end_of(cluster)["secondary_status"]) == ("Stopped", "MaxRuntimeExceeded")


def test_the_last_attempt_names_the_culprit(tmp_path):
    cluster = cluster_of(tmp_path, max_retry_attempts=None)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 2)
    assert json.loads(end_of(cluster)["failure"])["host"] == "algo-2"


def test_a_pattern_in_the_logs_decides_and_the_newest_checkpoint_is_named(tmp_path):
    cluster = cluster_of(tmp_path, log_policies={"ECC": "exclude_host"})
    steps(cluster, 2)
    bad = Failure(host="algo-2", rank=1, exit_code=1, exception="RuntimeError", message="CUDA").to_json()
    for pod in cluster.of("Pod"):
        host = pod["metadata"]["labels"]["dev.herringbone/host"]
        event = '{"kind": "checkpoint", "t": 1796058020.5, "path": "step-40.pt", "bytes": 7}'
        text = f"[{host}] \x1e{event}\n[{host}] ECC of another\n"
        cluster.logs[pod["metadata"]["name"]] = text + ("[algo-2:1] ECC error\n" if host == "algo-2" else "")
        cluster.end(host, 1, message=bad)
    steps(cluster, 2)
    (attempt,) = attempts(cluster)
    assert (attempt["excluded"], attempt["checkpoint"]) == (["n2"], "step-40.pt")


def test_hosts_that_do_not_end_with_a_failed_one_are_told_and_a_silent_kubelet_ends_them(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    cluster.end("algo-2", 137)
    (first,) = [pod["metadata"]["name"] for pod in cluster.of("Pod") if "algo-1" in pod["metadata"]["name"]]
    cluster.refused_pods = {first}
    keeper = keeper_of(cluster)
    cluster.now = BEGIN + 62
    for _ in range(3):
        with pytest.raises(KubernetesError):
            keeper.step()
    assert "hb-digits-a1-algo-1" in names(cluster, "Job")
    keeper.step()
    assert "hb-digits-a1-algo-1" not in names(cluster, "Job")


def test_a_job_whose_hosts_lost_their_jobs_does_not_wait_for_ever(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 3)
    del cluster.objects["apis/batch/v1/namespaces/team-a/jobs/hb-digits-a2-algo-2"]
    cluster.now += 40
    steps(cluster, 1)
    assert [attempt["why"] for attempt in attempts(cluster)][1:] == [
        "algo-2 was lost (exit code 137, killed by SIGKILL: its Job hb-digits-a2-algo-2 is gone)"
    ]


def test_a_pod_that_comes_late_to_an_older_attempt_is_deleted(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    lose(cluster)
    steps(cluster, 3)
    cluster.run_pods()
    cluster.remove_pod("algo-1")
    # The Job controller's work is slow.
    cluster.run_pods()
    steps(cluster, 1)
    assert "hb-digits-a1-algo-1" not in names(cluster, "Job")
    # With its log.
    assert "hb-digits-a1-algo-2" in names(cluster, "Job")


def test_a_change_that_the_server_refuses_once_costs_no_attempt(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    lose(cluster)
    put = cluster._put

    def refuse_once(*_: Any) -> None:
        cluster._put = put
        raise KubernetesError("etcdserver: leader changed", status=500)

    cluster._put = refuse_once
    with pytest.raises(NotNowError):
        keeper_of(cluster).step()
    steps(cluster, 2)
    assert (len(attempts(cluster)), end_of(cluster)) == (1, None)
