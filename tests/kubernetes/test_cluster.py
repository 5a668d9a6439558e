"""The cluster itself: pods run on both nodes, and find each other by name."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest

from tests.kubernetes import name_server
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.images import BUSYBOX

# Asks for a host until it listens: its name is unknown at first.
_SEND = "for i in $(seq 300); do echo hello | nc algo-1.peers.{}.svc 7000 && exit 0; sleep 0.1; done; exit 1"


def _pod(name: str, node: str, script: str) -> dict[str, Any]:
    container = {"name": "host", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "peers"}},
        "spec": {
            "restartPolicy": "Never",
            "hostname": name,
            "subdomain": "peers",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


@pytest.mark.kubernetes
def test_pods_of_both_nodes_find_each_other_by_name(cluster: Cluster, namespace: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "peers"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "peers"}},
    }
    pods = [_pod("algo-1", "n1", "nc -l -p 7000 | head -1"), _pod("algo-2", "n2", _SEND.format(namespace))]
    words = (f"--namespace={namespace}",)
    items = {"apiVersion": "v1", "kind": "List", "items": [service, *pods]}
    cluster.kubectl("apply", "--filename=-", *words, stdin=json.dumps(items))

    def phases() -> set[str]:
        return {pod["status"]["phase"] for pod in cluster.get("pods", *words)}

    cluster.wait(lambda: phases() <= {"Succeeded", "Failed"}, "the pods end")
    assert phases() == {"Succeeded"}
    assert cluster.kubectl("logs", "algo-1", *words) == "hello\n"
    assert {pod["spec"]["nodeName"] for pod in cluster.get("pods", *words)} == {"n1", "n2"}


@pytest.mark.kubernetes
def test_a_node_whose_kubelet_is_killed_comes_back(cluster: Cluster, namespace: str) -> None:
    cluster.halt("kubelet-n2")
    cluster.run("kubelet-n2")
    assert [node["metadata"]["name"] for node in cluster.get("nodes")] == ["n1", "n2"]


def test_addresses_of_a_headless_service() -> None:
    objects = {
        "/api/v1/namespaces/a/services/jobs": {"spec": {"clusterIP": "None"}},
        "/api/v1/namespaces/a/endpoints/jobs": {
            "subsets": [{"addresses": [{"ip": "10.0.0.1", "hostname": "algo-1"}, {"ip": "10.0.0.2"}]}]
        },
        "/api/v1/namespaces/a/services/web": {"spec": {"clusterIP": "10.9.0.1"}},
    }
    names = {
        "algo-1.jobs.a.svc.cluster.local": ["10.0.0.1"],
        "jobs.a.svc.cluster.local": ["10.0.0.1", "10.0.0.2"],
        "web.a.svc.cluster.local": ["10.9.0.1"],
        "algo-2.jobs.a.svc.cluster.local": None,
        "jobs.b.svc.cluster.local": None,
        "example.com": None,
    }
    assert {name: name_server.addresses(name, objects.get) for name in names} == names


def test_an_answer_has_the_question_and_its_addresses() -> None:
    objects = {"/api/v1/namespaces/a/services/web": {"spec": {"clusterIP": "10.9.0.1"}}}
    name = b"".join(bytes([len(word)]) + word for word in (b"web", b"a", b"svc", b"cluster", b"local")) + b"\0"
    question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)
    answer = name_server.answer(question, objects.get)
    assert answer[:2] == question[:2]
    assert answer[12 : len(question)] == question[12:]
    assert answer.endswith(socket.inet_aton("10.9.0.1"))
    unknown = name_server.answer(question.replace(b"\3web", b"\3bew"), objects.get)
    assert unknown[3] & 0xF == 3
