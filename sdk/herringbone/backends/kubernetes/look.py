"""A job as any client sees it: its ledger, the pods of its attempt, and whether its controller lives."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.ledger import NOT_FOUND, parse_ledger
from herringbone.backends.kubernetes.names import Label, ObjectNames, PodKind, settings_of
from herringbone.backends.kubernetes.next_attempt import current_plan
from herringbone.backends.kubernetes.pods import limit_of
from herringbone.backends.kubernetes.states import columns_of, described, pod_state, refusal_of
from herringbone.plan.plan import parse_plan
from herringbone.records.index import IN_PROGRESS, STOPPING, TERMINAL, JobRecord
from herringbone_contract.errors import KubernetesError

_DECIDES = "attempt {} is over, and the job's controller has not decided yet what follows"


def list_pods(api: Api, namespace: str, names: ObjectNames, part: str | None = PodKind.HOST) -> list[dict[str, Any]]:
    """Return the pods of all attempts of a job; of its controller, too, with None for `part`."""
    labels = names.labels() | ({Label.PART: part} if part else {})
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    pods: list[dict[str, Any]] = api.call("GET", path_of("Pod", namespace), labelSelector=selector)["items"]
    return pods


def log_pods(pods: Sequence[Mapping[str, Any]], first: str) -> list[tuple[str, str]]:
    """Return the pods with lines of the log, each with its host: the controller writes into the first host's."""
    named = [(pod["metadata"]["name"], pod["metadata"]["labels"]) for pod in pods]
    return [(pod, labels.get(Label.HOST, first)) for pod, labels in named if labels.get(Label.PART) != PodKind.READER]


def num_attempts(description: str | None) -> int:
    """Return how many attempts a job has had, by its description.

    >>> num_attempts(None), num_attempts('{"Attempts": [{"Attempt": 1}]}')
    (1, 2)
    """
    return 1 if description is None else len(json.loads(description).get("Attempts", ())) + 1


def look(
    api: Api, namespace: str, record: JobRecord, stored: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the columns of a job's row that have changed; `stored` is its ConfigMap, `pods` are those of its hosts."""
    ledger, now, names = parse_ledger(stored), time.time(), ObjectNames(record.name)
    if ledger.end is not None:
        return {**ledger.end, "description": described(record.description, None, "", now, ledger)}
    plan = parse_plan(record.plan_dict)
    hosts = [host.name for host in current_plan(plan, ledger).hosts]
    names, refusal = names._replace(attempt=ledger.attempt), ""
    if len({pod["metadata"]["labels"][Label.HOST] for pod in pods}) < len(hosts):
        events = api.call("GET", path_of("Event", namespace), fieldSelector="involvedObject.kind=Job")["items"]
        refusal = refusal_of(events, {names.host(host) for host in hosts})
    stopped = record.status == STOPPING or ledger.stop is not None
    columns = columns_of(
        pods,
        hosts,
        stopped=stopped,
        description=record.description,
        now=now,
        refusal=refusal,
        ledger=ledger,
        limit=limit_of(plan),
    )
    if record.started is not None:
        columns.pop("started", None)
    if settings_of(plan).service_account is None:
        return columns
    trouble, is_gone = _trouble(api, namespace, names)
    if columns["status"] not in TERMINAL:
        if trouble:
            text = f"its controller does not run: {trouble}"
            columns["description"] = described(columns["description"], None, text, now, ledger)
        return columns
    if is_gone:
        # Nobody else judges the job.
        return columns
    state = STOPPING if stopped else record.secondary_status
    message = (state, _DECIDES.format(ledger.attempt))
    description = described(record.description, message, trouble, now, ledger)
    return {"status": STOPPING if stopped else IN_PROGRESS, "secondary_status": state, "description": description}


def _trouble(api: Api, namespace: str, names: ObjectNames) -> tuple[str, bool]:
    """Return why a job's controller does not run, "" if it does, and whether it never will again."""
    name = f"{names.job}-controller"
    try:
        job = api.call("GET", path_of("Job", namespace, name))
    except KubernetesError as error:
        if error.status != NOT_FOUND:
            raise
        return f"somebody has deleted its Job {name}, so no other attempt follows", True
    failed = [each for each in job.get("status", {}).get("conditions", ()) if each["type"] == "Failed"]
    if failed:
        return f"its Job {name} has failed ({failed[0].get('message')}), so no other attempt follows", True
    return controller_trouble(list_pods(api, namespace, names, PodKind.CONTROLLER)), False


def controller_trouble(pods: Sequence[Mapping[str, Any]]) -> str:
    """Return why the newest pod of a controller does not run, "" if it does, or has only begun to. Pure."""
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
    if newest is None:
        return ""
    state = pod_state({**newest, "metadata": {**newest["metadata"], "labels": {Label.HOST: ""}}})
    for container in newest.get("status", {}).get("containerStatuses", ()):
        last = container.get("lastState", {}).get("terminated")
        if last and last["exitCode"] and "running" not in container["state"]:
            said = last.get("message", "").strip().rpartition("\n")[2]
            return (
                f"{said or 'it ended'} (exit code {last['exitCode']}); its image must have our wheel and 'kubernetes'"
            )
    return state.why if state.stuck or state.phase == "waiting" else ""
