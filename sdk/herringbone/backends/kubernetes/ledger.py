"""The ConfigMap of a job as its ledger: what its attempts have come to, read and changed by compare and swap; its pods.

data of the ConfigMap     written by
job, plan, context        the client, once
attempt, attempts         the controller: the number in the names of the objects, and what it has noted
stop                      any client: the seconds of grace
end                       the controller: the last columns of the job's row; who first sees an end adds what is missing
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.names import Label, ObjectNames, PodKind, label_query
from herringbone.controller.retry import Attempt
from herringbone_contract.errors import KubernetesError, RequestError

NOT_FOUND, CONFLICT = 404, 409
_BACKGROUND = {"propagationPolicy": "Background"}
# Of two that change a ledger at the same moment, one reads it again.
_TRIES = 10
_APART = ("attempt", "stop", "end")


class Noted(msgspec.Struct, frozen=True):
    """The pod that ran first for a host in an attempt: no other pod may take its place."""

    uid: str
    node: str
    started: float


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The attempts of a job.

    - `attempt` counts starts of the hosts, also those that were followed by one of fewer hosts.
    - `hosts` is their number in this attempt, None for all. `failed` are the attempts that failed, `times` their ends.
    - `pods` are those of this attempt that have run. `spent` are the seconds of the attempts before.
    - `made` says that the attempt's objects exist, and `since` when they were made.
    - `stop` are the seconds of grace of a job that somebody has stopped, `end` the last columns of its row.
    """

    attempt: int = 1
    hosts: int | None = None
    failed: tuple[Attempt, ...] = ()
    times: tuple[float, ...] = ()
    pods: dict[str, Noted] = {}
    spent: float = 0.0
    made: bool = True
    since: float = 0.0
    stop: float | None = None
    end: dict[str, Any] | None = None

    def next(self, *, hosts: int | None, **changes: Any) -> Ledger:
        """Return the ledger of the attempt after this one, whose objects are not made yet."""
        fresh: dict[str, Any] = {"attempt": self.attempt + 1, "hosts": hosts, "pods": {}, "made": False}
        return msgspec.structs.replace(self, **fresh, **changes)


def parse_ledger(stored: Mapping[str, Any]) -> Ledger:
    """Return the ledger of a ConfigMap.

    >>> ledger = parse_ledger({"data": {"attempt": "2", "stop": "5"}})
    >>> ledger.attempt, ledger.stop
    (2, 5.0)
    """
    data = stored["data"]
    ledger = msgspec.json.decode(data.get("attempts", "{}"), type=Ledger)
    return msgspec.structs.replace(
        ledger,
        attempt=int(data["attempt"]),
        stop=float(data["stop"]) if "stop" in data else None,
        end=json.loads(data["end"]) if "end" in data else None,
    )


def with_ledger(stored: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Return the ConfigMap with another ledger; its version stays, by which the API server refuses a second change."""
    apart = {"attempt": str(ledger.attempt)}
    if ledger.stop is not None:
        apart["stop"] = str(ledger.stop)
    if ledger.end is not None:
        apart["end"] = json.dumps(ledger.end)
    rest = {name: value for name, value in msgspec.to_builtins(ledger).items() if name not in _APART}
    return {**stored, "data": {**stored["data"], **apart, "attempts": json.dumps(rest)}}


def read_owner(api: Api, namespace: str, name: str) -> dict[str, Any] | None:
    """Return a job's ConfigMap; None when there is none."""
    try:
        stored: dict[str, Any] = api.call("GET", path_of("ConfigMap", namespace, name))
    except KubernetesError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    return stored


def owner_uid(api: Api, namespace: str, name: str) -> str:
    """Return the uid of a job's ConfigMap. Raises `RequestError` when there is none."""
    if (stored := read_owner(api, namespace, name)) is None:
        raise RequestError(f"ConfigMap {name} in namespace {namespace} was deleted, and the job's objects with it")
    return str(stored["metadata"]["uid"])


def save(api: Api, namespace: str, stored: Mapping[str, Any], ledger: Ledger) -> None:
    """Write a ledger. Raises `KubernetesError` with status 409 where somebody has changed it since it was read."""
    path = path_of("ConfigMap", namespace, stored["metadata"]["name"])
    api.call("PUT", path, with_ledger(stored, ledger))


def change(api: Api, namespace: str, name: str, changed: Callable[[Ledger], Ledger]) -> None:
    """Change the ledger of a job that exists, and none of one that is gone."""
    for rest in reversed(range(_TRIES)):
        if (stored := read_owner(api, namespace, name)) is None:
            return
        try:
            save(api, namespace, stored, changed(parse_ledger(stored)))
        except KubernetesError as error:
            if error.status != CONFLICT or not rest:
                raise
        else:
            return


def note_end(api: Api, namespace: str, name: str, columns: Mapping[str, Any]) -> None:
    """Note the last columns of a job that is over: pods may be deleted, and other machines know it by its ledger."""

    def noted(ledger: Ledger) -> Ledger:
        known = {column: value for column, value in columns.items() if value is not None}
        return msgspec.structs.replace(ledger, end={**known, **(ledger.end or {})})

    change(api, namespace, name, noted)


def delete(api: Api, kind: str, namespace: str, name: str) -> None:
    """Delete an object with all that it owns; one that is gone is no error."""
    try:
        api.call("DELETE", path_of(kind, namespace, name), _BACKGROUND)
    except KubernetesError as error:
        if error.status != NOT_FOUND:
            raise


def list_pods(api: Api, namespace: str, names: ObjectNames) -> list[dict[str, Any]]:
    """Return all pods of a job: those of all attempts, of its controller and of its reader."""
    pods: list[dict[str, Any]] = api.call("GET", path_of("Pod", namespace), **label_query(names.labels()))["items"]
    return pods


def list_events(api: Api, namespace: str, **about: str) -> list[dict[str, Any]]:
    """Return the events about some objects: `kind="Pod"`, or `uid`."""
    selector = ",".join(f"involvedObject.{name}={value}" for name, value in about.items())
    events: list[dict[str, Any]] = api.call("GET", path_of("Event", namespace), fieldSelector=selector)["items"]
    return events


def of_hosts(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["metadata"]["labels"][Label.PART] == PodKind.HOST]
