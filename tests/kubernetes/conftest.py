"""Fixtures: one cluster for all tests of this folder, and a namespace for each test."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone import Estimator, TrainingJob
from herringbone.backends.kubernetes.objects import role
from herringbone.show.manifests import as_yaml
from tests.kubernetes.cluster import Cluster, missing
from tests.kubernetes.images import SMALL
from tests.kubernetes.node_files import kubeconfig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test of the cluster the time to start it, too."""
    for item in items:
        if item.get_closest_marker("kubernetes") is not None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes; tests with the mark `kubernetes` are skipped on a machine that cannot run a cluster."""
    if reason := missing():
        pytest.skip(reason)
    # A short path, because the kernel limits the paths of sockets.
    with tempfile.TemporaryDirectory(prefix="hbk-") as folder, Cluster(Path(folder)) as running:
        print(f"\nseconds of the cluster's steps: {running.seconds}")
        yield running


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test alone; at its end no process of a pod may run on any node."""
    name = "team-a"
    cluster.kubectl("create", "namespace", name)
    # The controller manager makes it, and no pod is admitted before.
    cluster.wait(
        lambda: cluster.try_kubectl("get", "serviceaccount", "default", f"--namespace={name}").returncode == 0,
        "the namespace has a service account",
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=true", "--timeout=150s")
    cluster.wait(lambda: not any(map(cluster.processes, ("n1", "n2"))), "the processes of the pods end")


@pytest.fixture
def account(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig of a service account that has our Role in the namespace, and nothing else."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "herringbone", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "herringbone"},
        "subjects": [{"kind": "ServiceAccount", "name": "herringbone", "namespace": namespace}],
    }
    user = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "herringbone", "namespace": namespace},
    }
    cluster.kubectl("apply", "--filename=-", stdin=as_yaml([user, role(namespace), binding]))
    # The controller manager makes the token.
    tokens: list[str] = []

    def found() -> bool:
        for secret in cluster.get("secrets", f"--namespace={namespace}"):
            names = secret["metadata"].get("annotations", {})
            if names.get("kubernetes.io/service-account.name") == "herringbone" and "token" in secret.get("data", {}):
                tokens.append(base64.b64decode(secret["data"]["token"]).decode())
        return bool(tokens)

    cluster.wait(found, "the account has a token")
    path = tmp_path_factory.mktemp("account") / "config.json"
    path.write_text(kubeconfig(cluster.server, cluster.folder, tokens[0], namespace))
    return path


@pytest.fixture
def results(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the claim `results`, which the pods of both nodes can write to."""
    folder = tmp_path_factory.mktemp("results")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o777)
    cluster.make_volume("results", namespace, folder)
    yield folder
    cluster.kubectl("delete", "persistentvolumeclaim", "results", f"--namespace={namespace}", "--wait=false")
    cluster.kubectl("delete", "persistentvolume", "results", "--wait=false")


@pytest.fixture
def submit(account: Path, results: Path, tmp_path: Path, monkeypatch) -> Callable[..., TrainingJob]:
    """Submits a script, given as text, on two pods as somebody with our Role alone, and returns without waiting."""
    assert results.exists()
    monkeypatch.setenv("KUBECONFIG", str(account))
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERRINGBONE_STOP_GRACE", "5")
    monkeypatch.setenv("HERRINGBONE_HEARTBEAT", "1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def fit(text: str, *, inputs: Any = None, job_name: str = "Digits-1", **options: Any) -> TrainingJob:
        Path("train.py").write_text(text)
        arguments = {
            "instance_type": "k8s:team-a",
            "instance_count": 2,
            "image_uri": SMALL,
            "output_path": "pvc://results/jobs",
            "distribution": {"torch_distributed": {"enabled": True}},
            **options,
        }
        return Estimator("train.py", **arguments).fit(inputs, wait=False, job_name=job_name)

    return fit
