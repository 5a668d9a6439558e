"""An `Api` of a cluster that is a dict, with a Job controller and kubelets that the tests drive."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

from herringbone.backends.kubernetes.api import path_of
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.backends.kubernetes.objects import job_objects
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import KubernetesError
from tests.kubernetes.planning import context_of

STAMP = "2026-11-30T17:00:{:02}Z"
# `STAMP.format(0)` in seconds.
BEGIN = 1796058000.0
FILES = {"private.json": b'{"environment": {"A": "b"}, "key": "00"}\n', "g0.resourceconfig.json": b"{}", "code": b"c"}


class CrashError(Exception):
    """The controller is gone, before a request or after it."""


class FakeCluster:
    """Objects by path. `crash_at` and `is_after` end the controller at its nth change, before it or after it."""

    def __init__(self, plan: JobPlan, *, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.versions, self.now, self.nodes = itertools.count(1), BEGIN, nodes
        self.changes, self.crash_at, self.is_after = 0, -1, False
        self.logs: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        self.commands: list[tuple[str, str]] = []
        self.refused_pods: set[str] = set()
        self.job = ObjectNames(plan.job_name).job
        for each in job_objects(plan, context_of(plan, grace=5.0), FILES):
            if each["kind"] == "ConfigMap":
                each["data"]["plan"] = json.dumps(plan.to_dict())
            self._add(each)

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        if method == "GET":
            return self._read(path, query)
        self.changes += 1
        if self.changes == self.crash_at and not self.is_after:
            raise CrashError
        answer = {"POST": self._post, "PUT": self._put, "DELETE": self._delete}[method](path, body)
        if self.changes == self.crash_at:
            raise CrashError
        return answer

    def text(self, path: str, **query: str) -> bytes:
        assert query["limitBytes"]
        return self.logs.get(path.split("/")[-2], "").encode()

    def run(self, namespace: str, pod: str, container: str, command: list[str]) -> str:
        if pod in self.refused_pods:
            raise KubernetesError(f"pod {pod}: cannot run there")
        self.commands.append((pod, command[-1]))
        return ""

    def run_pods(self, *, unplaced: int = 0) -> None:
        """Give each Job without a living pod one that runs; the last `unplaced` of them find no node."""
        jobs = [each for each in self.of("Job") if "host" in each["metadata"]["labels"].get("dev.herringbone/part", "")]
        without = [job for job in jobs if not self.pods(job["metadata"]["name"])]
        for number, job in enumerate(without):
            name, count = job["metadata"]["name"], next(self.versions)
            excluded = json.dumps(job["spec"]["template"]["spec"].get("affinity", {}))
            free = [node for node in self.nodes if f'"{node}"' not in excluded]
            has_node = number < len(without) - unplaced and number < len(free)
            metadata = {
                "name": f"{name}-{count}",
                "uid": f"uid-{count}",
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "creationTimestamp": STAMP.format(count % 60),
                "ownerReferences": [{"kind": "Job", "name": name}],
            }
            pod = {"kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": "Pending"}}
            if has_node:
                pod["spec"] = {"nodeName": free[number]}
                running = {"name": "host", "state": {"running": {}}}
                pod["status"] = {"phase": "Running", "startTime": STAMP.format(0), "containerStatuses": [running]}
            else:
                condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
                pod["status"]["conditions"] = [condition]
            self._add(pod)

    def end(self, host: str, code: int, *, attempt: int = 1, at: int = 30, **terminated: Any) -> None:
        """End the pod of a host."""
        for pod in self._of_host(host, attempt):
            end = {"exitCode": code, "finishedAt": STAMP.format(at), **terminated}
            pod["status"] |= {
                "phase": "Failed" if code else "Succeeded",
                "containerStatuses": [{"name": "host", "state": {"terminated": end}}],
            }

    def remove_pod(self, host: str, attempt: int = 1) -> None:
        for pod in self._of_host(host, attempt):
            del self.objects[self._path(pod)]

    def mark_deleted(self, host: str, *, attempt: int = 1, is_away: bool = False) -> None:
        for pod in self._of_host(host, attempt):
            pod["metadata"]["deletionTimestamp"] = STAMP.format(40)
            conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
            pod["status"]["conditions"] = conditions if is_away else []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects.values() if each["kind"] == kind]

    def pods(self, job: str) -> list[dict[str, Any]]:
        return [pod for pod in self.of("Pod") if pod["metadata"]["ownerReferences"][0]["name"] == job]

    @property
    def data(self) -> dict[str, str]:
        data: dict[str, str] = self.of("ConfigMap")[0]["data"]
        return data

    def _of_host(self, host: str, attempt: int) -> list[dict[str, Any]]:
        wanted = {"dev.herringbone/host": host, "dev.herringbone/attempt": str(attempt)}
        return [pod for pod in self.of("Pod") if wanted.items() <= pod["metadata"]["labels"].items()]

    def _path(self, each: dict[str, Any]) -> str:
        return path_of(each["kind"], "team-a", each["metadata"]["name"])

    def _add(self, each: dict[str, Any]) -> None:
        stamps = {"resourceVersion": str(next(self.versions)), "creationTimestamp": STAMP.format(0)}
        metadata = {**stamps, "namespace": "team-a", "uid": "a-uid", **each["metadata"]}
        self.objects[self._path(each)] = copy.deepcopy({**each, "metadata": metadata})

    def _read(self, path: str, query: dict[str, str]) -> Any:
        kind = path.rpartition("/")[2]
        if kind == "events":
            return {"items": self.events}
        if kind in ("pods", "jobs", "jobsets", "secrets", "services"):
            wanted = dict(pair.split("=") for pair in query["labelSelector"].split(","))
            items = [each for name, each in self.objects.items() if name.rpartition("/")[0] == path]
            return {
                "items": [copy.deepcopy(each) for each in items if wanted.items() <= each["metadata"]["labels"].items()]
            }
        if path not in self.objects:
            raise KubernetesError("not found", status=404)
        return copy.deepcopy(self.objects[path])

    def _post(self, path: str, body: dict[str, Any]) -> None:
        if self._path(body) in self.objects:
            raise KubernetesError("exists", status=409)
        self._add(body)

    def _put(self, path: str, body: dict[str, Any]) -> None:
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise KubernetesError("the object has been modified", status=409)
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[path] = body

    def _delete(self, path: str, body: object) -> None:
        assert body == {"propagationPolicy": "Background"}
        if self.objects.pop(path, None) is None:
            raise KubernetesError("not found", status=404)
        for pod in self.pods(path.rpartition("/")[2]):
            del self.objects[self._path(pod)]
