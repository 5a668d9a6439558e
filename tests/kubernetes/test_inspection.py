"""`herringbone hosts check k8s:`: by literals, and on the real cluster with our Role alone."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.kubernetes.inspection import ClusterReport, amount, look, remarks
from herringbone.cli.machines.cluster_check import table
from herringbone.prediction import machines
from herringbone_contract.errors import KubernetesError
from tests.conftest import run
from tests.kubernetes.images import SMALL
from tests.kubernetes.planning import kubernetes_plan

NODE = {
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8", "hugepages-1Gi": "0", "a.b/none": "0"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
REFUSED = KubernetesError('nodes is forbidden: User "me" cannot list resource "nodes"', status=403)


class Server:
    """Answers by the end of a path; a class of errors is raised. `denied` are verbs that the account lacks."""

    def __init__(self, denied: tuple[str, ...] = (), **answers: Any) -> None:
        self.denied = denied
        self.answers = {
            "version": {"gitVersion": "v1.30.1"},
            "apis": {"groups": [{"name": "jobset.x-k8s.io"}]},
            "nodes": {"items": [NODE]},
            "resourcequotas": {"items": []},
            "limitranges": {"items": []},
            "configmaps": {},
            **answers,
        }
        self.changes: list[str] = []

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            assert asked["namespace"] == "team-a"
            kind = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return {"status": {"allowed": f"{asked['verb']} {kind} {asked['group']}".strip() not in self.denied}}
        if method != "GET" and query != {"dryRun": "All"}:
            self.changes.append(path)
        answer = self.answers[path.rpartition("/")[2]]
        if isinstance(answer, KubernetesError):
            raise answer
        return answer

    def stream(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def text(self, *_: Any, **__: Any) -> bytes:
        raise AssertionError

    def run(self, *_: Any, **__: Any) -> str:
        raise AssertionError


def report_of(claim: str | None = None, denied: tuple[str, ...] = (), **answers: Any) -> ClusterReport:
    server = Server(denied, **answers)
    report = look(server, "team-a", claim)
    assert server.changes == []
    return report


def quota(**hard: str) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": "q"}, "status": {"hard": hard, "used": dict.fromkeys(hard, "2")}}]}


def claim(*modes: str) -> dict[str, Any]:
    return {"spec": {"accessModes": list(modes)}, "status": {"phase": "Bound"}}


def test_a_cluster_on_which_a_job_may_start() -> None:
    report = report_of("results", results=claim("ReadWriteMany"))
    assert report.problems == []
    assert report.workloads == ["job", "jobset"]
    assert [line.split() for line in table(report)[3:5]] == [
        ["NODE", "CPUS", "MEMORY", "DEVICES", "MODEL", "STATE"],
        ["n1", "96", "1.1", "TB", "8", "nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3", "ready"],
    ]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"version": {"gitVersion": "v1.19.3-eks"}}, "the server is v1.19.3-eks; jobs need Kubernetes 1.20 or newer"),
        (
            {"denied": ("create secrets", "get pods/exec", "delete jobs batch")},
            "the account may not: create secrets, get pods/exec, delete jobs.batch; the Role that suffices: "
            "herringbone hosts check --role k8s:team-a",
        ),
        ({"configmaps": KubernetesError("not found", status=404)}, "namespace team-a: not found"),
        ({"resourcequotas": quota(services="2")}, "quota q: services: 2 of 2 are used, so no job starts"),
        ({"resourcequotas": quota(**{"requests.memory": "2"})}, "quota q: requests.memory: 2 of 2 are used"),
        (
            {"claim": "results", "results": KubernetesError("no", status=404)},
            "claim results: namespace team-a has none",
        ),
        ({"claim": "results", "results": claim("ReadWriteOnce")}, "claim results is ReadWriteOnce: pods on several"),
        ({"nodes": {"items": [{**NODE, "spec": {"unschedulable": True}}]}}, "no node takes pods: n1 takes no new pods"),
        ({"nodes": {"items": [{**NODE, "status": {}}]}}, "no node takes pods: n1 is not ready"),
    ],
)
def test_what_would_keep_a_job_from_running(answers: dict[str, Any], problem: str) -> None:
    (found,) = report_of(**answers).problems
    assert found.startswith(problem)


@pytest.mark.parametrize("used", ["1", "1999m"])
def test_a_quota_with_room_is_no_problem(used: str) -> None:
    content = quota(**{"requests.cpu": "2"})
    content["items"][0]["status"]["used"]["requests.cpu"] = used
    assert report_of(resourcequotas=content).problems == []


def test_what_the_account_may_not_see_is_said() -> None:
    report = report_of("results", nodes=REFUSED, resourcequotas=REFUSED, limitranges=REFUSED, results=REFUSED)
    assert report.problems == []
    shown = "\n".join(table(report))
    for what in ("nodes and their devices", "quotas", "limit ranges", "claim results"):
        assert f"not shown: {what}: the account may not see them" in shown


def test_an_account_that_may_not_create_objects_does_not_lack_its_namespace() -> None:
    denied = KubernetesError('POST: configmaps is forbidden: User "me" cannot create resource', status=403)
    report = report_of(denied=("create configmaps",), configmaps=denied)
    assert (report.missing, len(report.problems)) == ("", 1)


def test_limits_that_pods_must_keep_are_said() -> None:
    limits = [{"type": "Container", "default": {"memory": "512Mi"}, "max": {"cpu": "4"}}, {"type": "Other"}]
    ranges = {"items": [{"metadata": {"name": "r"}, "spec": {"limits": limits}}]}
    content = quota(**{"limits.memory": "9", "requests.cpu": "9"})
    assert list(remarks(report_of(resourcequotas=content, limitranges=ranges))) == [
        "a quota counts cpu: pods that name none are refused, so give kubernetes={'cpu': ...}",
        "a pod that names no memory gets 512Mi",
        "a container may have at most 4 of cpu",
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("1500m", "1.5"), ("2k", 2000), ("3Mi", 3 << 20), ("1E", 10**18), ("1e3", 1000)]
)
def test_amounts(text: str, value: Any) -> None:
    assert amount(text) == Decimal(value)


def labelled(name: str, gpus: str, **labels: str) -> dict[str, Any]:
    model = {"nvidia.com/gpu.product": name} if name else {}
    return {
        "metadata": {"name": f"node-{name}", "labels": {**model, **labels}},
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": gpus}},
    }


NODES = [
    labelled("NVIDIA-H100-80GB-HBM3", "8", pool="new"),
    labelled("Tesla-T4", "4", pool="old"),
    labelled("NVIDIA-L4", "1", pool="old"),
    labelled("", "8", pool="new"),
]


@pytest.mark.parametrize(
    ("gpus", "selector", "device"),
    [
        # The slowest that fits counts.
        (1, {}, "Tesla T4"),
        (8, {}, "NVIDIA H100 80GB HBM3"),
        (1, {"pool": "new"}, "NVIDIA H100 80GB HBM3"),
        (2, {"nvidia.com/gpu.product": "NVIDIA-L40S"}, "NVIDIA L40S"),
        (16, {}, None),
        (None, {}, None),
    ],
)
def test_the_device_of_a_prediction_is_that_of_the_nodes_labels(
    tmp_path, monkeypatch, gpus: int | None, selector: dict[str, str], device: str | None
) -> None:
    monkeypatch.setattr(machines, "Cluster", lambda _: Server(nodes={"items": NODES}))
    figures = machines.known_figures(kubernetes_plan(tmp_path, gpus=gpus, kubernetes={"node_selector": selector}))
    assert (figures and (figures.device.name, figures.devices)) == (device and (device, gpus))


def test_a_prediction_goes_without_an_account_that_may_list_nodes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(machines, "Cluster", lambda _: Server(nodes=REFUSED))
    assert machines.known_figures(kubernetes_plan(tmp_path, gpus=1)) is None


def checked(*words: str) -> Any:
    return run(sys.executable, "-m", "herringbone", "hosts", "check", *words)


@pytest.mark.kubernetes
def test_a_look_at_the_real_cluster_with_our_role_alone(cluster, account, results, tmp_path, monkeypatch) -> None:
    assert results.exists()
    monkeypatch.setenv("KUBECONFIG", str(account))
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    result = checked("k8s:team-a", "--deep", f"--image={SMALL}", "--claim=pvc://results/checks", "--json")
    report = json.loads(result.stdout)
    assert (result.returncode, report["denied"], report["problems"]) == (0, [], []), result.stderr
    assert report["server"] == "v1.20.2"
    assert "nodes and their devices" in report["hidden"]
    # The image has no torch.
    named = [line.partition(": ")[2].partition(":")[0] for line in report["health"]]
    assert named == ["algo-1", "algo-2", "links between hosts were not measured"]
    assert not cluster.get("configmaps", "--namespace=team-a", "--selector=dev.herringbone/job")
    # An account without rights is told which, and the Role is what kubectl takes.
    role = checked("k8s:team-a", "--role").stdout
    cluster.kubectl("delete", "role", "herringbone", "--namespace=team-a")
    assert "the account may not: get configmaps, list configmaps" in checked("k8s:team-a").stdout
    cluster.kubectl("apply", "--filename=-", stdin=role)
    assert checked("k8s:team-a").returncode == 0
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    lines = checked("k8s:team-a").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("ready")] == ["n1", "n2"]
    assert Path(results, "checks").exists()
