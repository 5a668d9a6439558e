"""The jobs of a namespace, whoever submitted them: a job's ConfigMap has all that a row of the index needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.names import Label, ObjectNames
from herringbone.plan.names import check_job_name
from herringbone.records.index import JobRecord
from herringbone_contract.errors import JobNameError


def jobs_in(api: Api, namespace: str, context: str | None) -> list[JobRecord]:
    """Return a row for each job of a namespace, the newest first, as if it had been submitted here.

    `describe` then asks the cluster for the present state, as for every job. Raises `KubernetesError`.
    """
    items = api.call("GET", path_of("ConfigMap", namespace), labelSelector=Label.JOB)["items"]
    records = [_row(item, namespace, context) for item in items]
    return sorted(filter(None, records), key=lambda record: record.created, reverse=True)


def _row(item: Mapping[str, Any], namespace: str, context: str | None) -> JobRecord | None:
    """Return the row of a job; None for a ConfigMap that is no job of this release."""
    try:
        data = item["data"]
        plan, name = json.loads(data["plan"]), data["job"]
        # Anybody in the namespace may make one with our label.
        if item["metadata"]["name"] != ObjectNames(check_job_name(name)).job:
            return None
        return JobRecord(
            name=name,
            backend="kubernetes",
            plan=data["plan"],
            created=datetime.fromisoformat(item["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp(),
            hosts=len(plan["hosts"]),
            # Of this machine's kubeconfig: the submitter's contexts may have other names.
            service=json.dumps({"context": context, "namespace": namespace, "uid": item["metadata"]["uid"]}),
        )
    except (KeyError, TypeError, ValueError, JobNameError):
        return None


def is_same(known: JobRecord, found: JobRecord) -> bool:
    """Report whether a row of the index is that of a job that was found in a namespace."""
    place, there = json.loads(known.service or "{}"), json.loads(found.service or "{}")
    is_there = known.backend == found.backend and place.get("namespace") == there["namespace"]
    return is_there and place.get("uid", there["uid"]) == there["uid"]
