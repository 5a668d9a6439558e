"""The reader pod: its object as a literal, and how clients make it, find it and hear why it cannot run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from herringbone.backends.kubernetes.data import reader
from herringbone.backends.kubernetes.data.reader import Reader, reader_job
from herringbone_contract.errors import RequestError
from tests.kubernetes.data.local_api import LocalApi
from tests.kubernetes.planning import IMAGE, kubernetes_plan

OWNER = "api/v1/namespaces/team-a/configmaps/hb-digits"
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "host", "state": {"running": {}}}]}


@pytest.fixture
def api(tmp_path: Path) -> LocalApi:
    api = LocalApi({}, lambda api, job: api.add_pod(job, **RUNNING))
    api.objects[OWNER] = {"metadata": {"name": "hb-digits", "uid": "a-uid", "labels": {}}}
    return api


def reader_of(api: LocalApi, folder: Path, **seconds: float) -> Reader:
    ticks: Iterator[int] = iter(range(10_000))
    return Reader(api, kubernetes_plan(folder), clock=lambda: next(ticks), sleep=lambda _: None, **seconds)


def test_the_object(tmp_path):
    job = reader_job(kubernetes_plan(tmp_path, checkpoint_s3_uri="pvc://results/saved"), "a-uid")
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    assert job["metadata"]["name"] == "hb-digits-reader"
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "hb-digits", "uid": "a-uid"}
    assert job["metadata"]["ownerReferences"] == [reference]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["dev.herringbone/part"] == "reader"
    pod = job["spec"]["template"]["spec"]
    (maker,), (container,) = pod["initContainers"], pod["containers"]
    assert maker["command"] == [
        "mkdir",
        "-p",
        "--",
        "/herringbone/claims/claim-0/jobs/digits",
        "/herringbone/claims/claim-0/saved",
    ]
    assert container["volumeMounts"] == [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "claim-0", "mountPath": "/herringbone/results", "subPath": "jobs/digits"},
        {"name": "claim-0", "mountPath": "/herringbone/checkpoints", "subPath": "saved", "readOnly": True},
    ]
    assert pod["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "claim-0", "persistentVolumeClaim": {"claimName": "results"}},
    ]
    assert (container["image"], pod["automountServiceAccountToken"]) == (IMAGE, False)
    assert "env" not in container


def test_one_pod_serves_all(api, tmp_path):
    assert reader_of(api, tmp_path).pod() == reader_of(api, tmp_path).pod() == "hb-digits-reader-x1"
    assert api.made == 1


def test_a_caller_without_time_uses_a_pod_that_runs_and_waits_for_none(api, tmp_path):
    api._on_job = lambda api, job: api.add_pod(job, phase="Pending")
    with pytest.raises(RequestError, match="not within 0 s"):
        reader_of(api, tmp_path, start_seconds=0.0).pod()
    (pod,) = [each for name, each in api.objects.items() if "/pods/" in name]
    pod["status"] = RUNNING
    assert reader_of(api, tmp_path, start_seconds=0.0).pod() == "hb-digits-reader-x1"


def test_a_pod_that_has_ended_is_made_again(api, tmp_path):
    reader_of(api, tmp_path).pod()
    (pod,) = [each for name, each in api.objects.items() if "/pods/" in name]
    pod["status"] = {"phase": "Succeeded"}
    assert reader_of(api, tmp_path).pod() == "hb-digits-reader-x1"
    assert api.made == 2


def event(kind: str, name: str, reason: str, message: str) -> dict[str, Any]:
    about = {"involvedObject": {"kind": kind, "name": name}, "type": "Warning", "lastTimestamp": "1"}
    return {**about, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("status", "event", "words"),
    [
        (None, event("Job", "hb-digits-reader", "FailedCreate", "exceeded quota: q"), "exceeded quota: q"),
        (
            {"phase": "Pending"},
            event("Pod", "hb-digits-reader-x1", "FailedMount", "Multi-Attach error for volume"),
            "FailedMount: Multi-Attach error for volume",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "host", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
                ],
            },
            None,
            "ErrImagePull: not found; check image_uri",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}],
            },
            None,
            "0/2 nodes are available",
        ),
        ({"phase": "Pending"}, None, "not within 300 s"),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "folders", "state": {"terminated": {"exitCode": 1, "message": "mkdir: Permission denied"}}}
                ],
            },
            None,
            "it ended at once with exit code 1: mkdir: Permission denied",
        ),
    ],
)
def test_a_pod_that_cannot_run_says_why(api, tmp_path, status, event, words):
    api._on_job = lambda api, job: None if status is None else api.add_pod(job, **status)
    api.events = [event] if event else []
    with pytest.raises(RequestError, match=f"pod hb-digits-reader, which reads its claims, cannot run: .*{words}"):
        reader_of(api, tmp_path).pod()


def test_a_job_without_objects(api, tmp_path):
    del api.objects[OWNER]
    with pytest.raises(RequestError, match="hb-digits in namespace team-a was deleted, and the job's objects with it"):
        reader_of(api, tmp_path).pod()


def test_the_program_ends_without_use(monkeypatch):
    # Nothing else is counted on this machine than what the glob finds.
    program = reader._PROGRAM.replace("/proc/[0-9]*", "/proc/self").replace("sleep 5", "sleep 0.01")
    begin = time.monotonic()
    subprocess.run(("/bin/sh", "-c", program, "300"), check=True, timeout=20)
    assert time.monotonic() - begin < 15
    busy = program.replace("/proc/self", "/proc/self /proc/1")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(("/bin/sh", "-c", busy, "10"), timeout=0.5)
