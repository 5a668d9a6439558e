"""Fixtures: one cluster for all tests of this folder, and a namespace for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, missing


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
