"""A stand-in for JobSet's controller, which no package has: makes and removes the Jobs of JobSets.

The API server of the tests cannot keep objects of foreign kinds: it dies at the first one. So the
stand-in takes what the client sends about JobSets, and makes what the published controller makes: for each entry of
`replicatedJobs` a Job `JOBSET-NAME-0`, which belongs to the set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herringbone.backends.kubernetes.api import Cluster, path_of

_FOLDER = "apis/jobset.x-k8s.io/v1alpha2/namespaces/"
_MEMBERS = {"network", "successPolicy", "failurePolicy", "replicatedJobs"}
_BACKGROUND = {"propagationPolicy": "Background"}


class StandIn:
    """Takes the place of `Cluster.call`; `deleted` are the names of the sets that were deleted."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._sets: dict[str, list[str]] = {}
        self.deleted: list[str] = []

    def answer(self, cluster: Cluster, method: str, path: str, body: Any = None, **query: str) -> Any:
        if not path.startswith(_FOLDER):
            return self._call(cluster, method, path, body, **query)
        namespace, _, name = path.removeprefix(_FOLDER).partition("/jobsets")
        if method == "POST":
            return self._make(cluster, namespace, body)
        assert (method, body) == ("DELETE", _BACKGROUND)
        self.deleted.append(name.removeprefix("/"))
        for job in self._sets.pop(name.removeprefix("/"), ()):
            self._call(cluster, "DELETE", path_of("Job", namespace, job), _BACKGROUND)
        return {}

    def _make(self, cluster: Cluster, namespace: str, job_set: dict[str, Any]) -> dict[str, Any]:
        metadata, spec = job_set["metadata"], job_set["spec"]
        assert set(spec) <= _MEMBERS
        jobs = self._sets.setdefault(metadata["name"], [])
        for each in spec["replicatedJobs"]:
            assert each["replicas"] == 1
            name = f"{metadata['name']}-{each['name']}-0"
            # By the ConfigMap, as the set itself: the collector would miss a set that the server does not know.
            owned = {"name": name, "ownerReferences": metadata["ownerReferences"], "labels": metadata["labels"]}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": owned, "spec": each["template"]["spec"]}
            self._call(cluster, "POST", path_of("Job", namespace), job)
            jobs.append(name)
        return job_set
