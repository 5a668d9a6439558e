"""A job as any client sees it: its ledger, the pods of its attempt, and whether its controller lives."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.attempts.next_attempt import current_plan
from herringbone.backends.kubernetes.ledger import NOT_FOUND, list_events, of_hosts, parse_ledger
from herringbone.backends.kubernetes.names import Label, ObjectNames, PodKind, settings_of
from herringbone.backends.kubernetes.states import (
    PodState,
    columns_of,
    delay_of,
    described,
    host_states,
    pod_state,
    refusal_of,
)
from herringbone.plan.plan import parse_plan
from herringbone.records.index import COMPLETED, STOPPING, TERMINAL, JobRecord
from herringbone_contract.errors import KubernetesError

_DECIDES = "attempt {} is over, and the job's controller has not decided yet what follows"


def log_pods(pods: Iterable[Mapping[str, Any]], first: str) -> list[tuple[str, str]]:
    """Return the pods with lines of the log, each with its host: the controller writes into the first host's."""
    named = [(pod["metadata"]["name"], pod["metadata"]["labels"]) for pod in pods]
    return [(pod, labels.get(Label.HOST, first)) for pod, labels in named if labels.get(Label.PART) != PodKind.READER]


def num_log_pods(record: JobRecord, pods: Iterable[Mapping[str, Any]]) -> int:
    """Return how many pods have left a log, in all attempts; 0 where all of them are among `pods`. Pure."""
    attempts = len(json.loads(record.description or "{}").get("Attempts", ())) + 1
    # A host that never ran has left no log, and the first attempt of a job that runs has all of its pods.
    if not record.started or (attempts == 1 and not record.done):
        return 0
    controllers = [pod for pod in pods if pod["metadata"]["labels"].get(Label.PART) == PodKind.CONTROLLER]
    return record.num_hosts * attempts + len(controllers)


def look(
    api: Api, namespace: str, record: JobRecord, stored: Mapping[str, Any], pods: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the columns of a job's row that have changed; `stored` is its ConfigMap."""
    ledger, now = parse_ledger(stored), time.time()
    if ledger.end is not None:
        # Nobody may have looked while it ran.
        started = [state.started for state in map(pod_state, of_hosts(pods)) if state.started is not None]
        known = {"started": min(started)} if started and record.started is None else {}
        return {**known, **ledger.end, "description": described(record.description, None, "", now, ledger)}
    plan = parse_plan(record.plan_dict)
    hosts = [host.name for host in current_plan(plan, ledger).hosts]
    names, refusal = ObjectNames(record.name, ledger.attempt), ""
    states = host_states(pods, hosts, ledger, now)
    if any(_is_delayed(state) for state in states):
        events = list_events(api, namespace, kind="Pod")
        states = [each._replace(why=delay_of(events, each.pod)) if _is_delayed(each) else each for each in states]
    if len(states) < len(hosts):
        suffix = "-0" if settings_of(plan).workload == "jobset" else ""
        refusal = _refusal(api, namespace, {names.host(host) + suffix for host in hosts})
    stopped = record.status == STOPPING or ledger.stop is not None
    columns = columns_of(
        states,
        hosts,
        stopped=stopped,
        description=record.description,
        now=now,
        refusal=refusal,
        ledger=ledger,
        limit=plan.limiting_option,
    )
    if record.started is not None:
        columns.pop("started", None)
    is_over = columns["status"] in TERMINAL
    # After a stop or a good end no attempt follows, whoever says so.
    if settings_of(plan).service_account is None or (is_over and (stopped or columns["status"] == COMPLETED)):
        return columns
    why, is_gone = _trouble(api, namespace, names, pods)
    if is_over and is_gone:
        # Nobody else judges the job.
        return columns
    trouble = f"its controller does not run, which starts attempts: {why}" if why else ""
    if not is_over:
        if trouble:
            columns["description"] = described(columns["description"], None, trouble, now, ledger)
        return columns
    state = (record.secondary_status, _DECIDES.format(ledger.attempt))
    return {"description": described(record.description, state, trouble, now, ledger)}


def _is_delayed(state: PodState) -> bool:
    return state.phase == "starting" and not state.why


def _refusal(api: Api, namespace: str, names: Collection[str]) -> str:
    return refusal_of(list_events(api, namespace, kind="Job"), names)


def _trouble(api: Api, namespace: str, names: ObjectNames, pods: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Return why a job's controller does not run, "" if it does, and whether it never will again."""
    name = f"{names.job}-controller"
    pods = [pod for pod in pods if pod["metadata"]["labels"][Label.PART] == PodKind.CONTROLLER]
    if any(pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") for pod in pods):
        return controller_trouble(pods), False
    try:
        job = api.call("GET", path_of("Job", namespace, name))
    except KubernetesError as error:
        if error.status != NOT_FOUND:
            raise
        return f"somebody has deleted its Job {name}", True
    failed = [each for each in job.get("status", {}).get("conditions", ()) if each["type"] == "Failed"]
    if failed:
        return f"its Job {name} has failed: {failed[0].get('message')}", True
    return _refusal(api, namespace, {name}), False


def controller_trouble(pods: Sequence[Mapping[str, Any]]) -> str:
    """Return why the newest pod of a controller does not run, "" if it does, or has only begun to. Pure."""
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    state = pod_state({**newest, "metadata": {**newest["metadata"], "labels": {Label.HOST: ""}}})
    for container in newest.get("status", {}).get("containerStatuses", ()):
        last = container.get("lastState", {}).get("terminated")
        if last and last["exitCode"] and "running" not in container["state"]:
            said = last.get("message", "").strip().rpartition("\n")[2]
            why = f"{said or 'it ended'} (exit code {last['exitCode']})"
            return f"{why}; its image must have our wheel, boto3 and websocket-client"
    return state.why if state.stuck or state.phase == "waiting" else ""
