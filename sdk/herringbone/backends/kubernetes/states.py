"""The state of a job in SageMaker's words, from the pods of its hosts. Pure.

pods                                       the job
one ended badly, and none runs             Failed: the first failure in time, as `controller.verdict` judges
all ended                                  Completed, or Stopped by the user or by max_run
all run                                    Training
some run or are being prepared             Starting
one waits                                  Pending, with the scheduler's own words
one cannot get its image                   Pending, with the kubelet's own words: it would wait for ever
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from herringbone.backends.kubernetes.ledger import Ledger
from herringbone.backends.kubernetes.names import Label, PodKind
from herringbone.backends.kubernetes.pods import CONTAINER, TIME_IS_OVER
from herringbone.controller.attempt_end import last_columns
from herringbone.controller.retry import describe_attempts
from herringbone.controller.verdict import HostEnd, Verdict, judge
from herringbone.records.index import (
    IN_PROGRESS,
    INTERRUPTED,
    PENDING,
    RESTARTING,
    STARTING,
    STOPPED,
    STOPPING,
    TRAINING,
)
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import STOPPED_CODE, Failure
from herringbone_contract.failure_text import parse_failure
from herringbone_contract.faults.policies import DRAIN

# Reasons for which a container waits, and will not start by itself in most cases.
_STUCK = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ErrImageInspect",
        "RegistryUnavailable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    )
)
_IMAGE_REMEDY = "check image_uri and image_pull_secrets"
_OTHER_REMEDY = "`kubectl describe pod {}` has its events"
_KILLED, _NO_PROGRAM = 137, 127
_NO_PROGRAM_REMEDY = "image_uri: it has no `train` or python3; `herringbone images build` makes one that has"
# The reason of an event: a node fetches an image.
PULLING = "Pulling"
_FIRST = Ledger()
DELETED = "its pod was deleted, as `kubectl delete pod` and a drain of its node do"
_OUT_OF_MEMORY = "out of memory: ask for more (kubernetes={'memory': ...})"


class PodState(NamedTuple):
    """One host's pod. `phase` is "waiting", "starting", "running" or "over".

    `why` are the cluster's own words. `stuck`: it will not go on without help. `exit_code`, `ended`, `record` and
    `lost` are those of a pod that is over; times are seconds since 1970. `leaving` is when the grace ends of a pod that
    somebody deletes; `is_away`: the cluster does not hear from its node. `is_seen`: its end was.
    """

    host: str
    pod: str
    phase: str
    node: str = ""
    why: str = ""
    stuck: bool = False
    started: float | None = None
    ended: float = 0.0
    exit_code: int = 0
    record: Failure | None = None
    lost: bool = False
    uid: str = ""
    leaving: float | None = None
    is_away: bool = False
    is_seen: bool = True


def refusal_of(events: Sequence[Mapping[str, Any]], names: Collection[str]) -> str:
    """Return the cluster's last word about a Job of these names whose pod it does not make; "" without one.

    A quota, a missing priority class or a missing account stop pods, and not the Jobs that make them.
    """
    refused = [each for each in events if each["involvedObject"]["name"] in names and each["reason"] == "FailedCreate"]
    newest = max(refused, key=lambda each: str(each.get("lastTimestamp")), default=None)
    return "" if newest is None else f"no pod is made: {newest['message']}"


def delay_of(events: Sequence[Mapping[str, Any]], pod: str) -> str:
    """Return the cluster's last words about a pod that only starts; "" without any.

    Kubelets repeat what fails, in other words from time to time: those count that came most often.
    """
    about = [each for each in events if each["involvedObject"]["name"] == pod]
    newest = max(about, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime")), default=None)
    if newest is not None and newest["type"] == "Warning":
        newest = max((each for each in about if each["type"] == "Warning"), key=lambda each: each.get("count") or 1)
    elif newest is None or newest["reason"] != PULLING:
        return ""
    return f"{newest['reason']}: {newest['message']}"


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Return the state of a pod, as the API server describes it."""
    metadata, status = pod["metadata"], pod.get("status", {})
    state = PodState(metadata["labels"][Label.HOST], metadata["name"], "waiting", pod["spec"].get("nodeName", ""))
    state = state._replace(uid=metadata.get("uid", ""), leaving=_seconds(metadata.get("deletionTimestamp")))
    started = _seconds(status.get("startTime"))
    if status.get("phase") in ("Succeeded", "Failed"):
        return _over(state._replace(phase="over", started=started), status)
    container = next((each for each in _containers(status) if each["name"] == CONTAINER), {})
    if "running" in container.get("state", {}):
        is_ready = {each["type"]: each["status"] == "True" for each in status.get("conditions", ())}
        # Only the cluster takes back that a pod is ready whose containers are.
        is_away = is_ready.get("ContainersReady", False) and not is_ready.get("Ready", True)
        return state._replace(phase="running", started=started, is_away=is_away)
    for each in _containers(status):
        waiting = each.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _STUCK:
            remedy = _IMAGE_REMEDY if "Image" in waiting["reason"] else _OTHER_REMEDY.format(state.pod)
            why = f"{waiting['reason']}: {waiting.get('message', '')}; {remedy}"
            return state._replace(phase="starting", why=why, stuck=True)
    unscheduled = next(
        (each for each in status.get("conditions", ()) if each["type"] == "PodScheduled" and each["status"] != "True"),
        None,
    )
    if unscheduled is not None:
        return state._replace(why=unscheduled.get("message") or unscheduled.get("reason", ""))
    return state._replace(phase="starting" if state.node else "waiting")


def host_states(pods: Sequence[Mapping[str, Any]], hosts: Sequence[str], ledger: Ledger, now: float) -> list[PodState]:
    """Return the states of an attempt's hosts, without those that have no pod yet.

    Of a host whose pod was replaced the newer one counts, until one of them is noted: that one alone counts from then
    on, and the host is lost when it is gone.
    """
    newest = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    named = {Label.PART: PodKind.HOST, Label.ATTEMPT: str(ledger.attempt)}
    ours = [pod_state(pod) for pod in newest if named.items() <= pod["metadata"]["labels"].items()]
    states = []
    for host in hosts:
        noted, of_host = ledger.pods.get(host), [state for state in ours if state.host == host]
        state = next((state for state in reversed(of_host) if noted is None or state.uid == noted.uid), None)
        if state is not None:
            states.append(state)
        elif noted is not None:
            gone = PodState(host, "", "over", noted.node, DELETED, started=noted.started, ended=now, uid=noted.uid)
            states.append(gone._replace(exit_code=_KILLED, lost=True, is_seen=False))
    return states


def columns_of(
    states: Sequence[PodState],
    hosts: Sequence[str],
    *,
    stopped: bool,
    description: str | None,
    now: float,
    refusal: str = "",
    ledger: Ledger = _FIRST,
    limit: str = "max_run",
) -> dict[str, Any]:
    """Return the columns of a job's row; `stopped` says whether the user asked for a stop.

    `description` is the row's, `refusal` is why a host has no pod. `limit` is the option whose limit the pods keep.
    """
    started = [state.started for state in states if state.started is not None]
    columns: dict[str, Any] = {"started": min(started)} if started and not ledger.failed else {}
    over = [state for state in states if state.phase == "over"]
    is_active = any(state.phase == "running" for state in states)
    failed = any(state.exit_code for state in over)
    if (over and failed and not is_active) or len(over) == len(hosts) or (stopped and not is_active):
        verdict = verdict_of(over, stopped=stopped, limit=limit)
        if verdict.failure is not None and verdict.failure.fault == DRAIN:
            verdict = Verdict(STOPPED, INTERRUPTED)
        return columns | end_columns(verdict, max((state.ended for state in over), default=0.0) or now)
    waiting = [state for state in states if state.phase == "waiting"]
    stuck = [state for state in states if state.stuck]
    if waiting or stuck or len(states) < len(hosts):
        secondary = PENDING
    else:
        secondary = TRAINING if all(state.phase in ("running", "over") for state in states) else STARTING
    if ledger.failed and secondary != TRAINING:
        secondary = RESTARTING
    refusal = refusal if len(states) < len(hosts) else ""
    message = refusal or _message(states, hosts)
    standstill = "; ".join([*filter(None, [refusal]), *(f"{state.host}: {state.why}" for state in stuck)])
    return columns | {
        "status": STOPPING if stopped else IN_PROGRESS,
        "secondary_status": STOPPING if stopped else secondary,
        "description": described(description, (secondary, message), standstill, now, ledger),
    }


def verdict_of(over: Sequence[PodState], *, stopped: bool, limit: str) -> Verdict:
    """Return the verdict on an attempt, from the pods that are over."""
    is_late = any(state.exit_code == TIME_IS_OVER for state in over)
    # The other hosts end when the first one stops, fails or is lost.
    is_answered = is_late or any(state.lost or state.exit_code not in (0, STOPPED_CODE) for state in over)
    ends = [
        HostEnd(
            state.host,
            state.exit_code,
            ordered=stopped or (is_answered and not state.lost and state.exit_code in (TIME_IS_OVER, STOPPED_CODE)),
            record=state.record,
            cause=state.why,
            lost=state.lost,
        )
        for state in sorted(over, key=lambda state: state.ended)
    ]
    # A job that was stopped while all of its hosts waited has none that ended.
    verdict = judge(ends or [HostEnd("", STOPPED_CODE, ordered=True)], stopped=stopped, limit=limit if is_late else "")
    if verdict.failure is None or all(state.is_seen for state in over if state.host == verdict.lost):
        return verdict
    # Nobody knows with which code it ended.
    return replace(verdict, failure=verdict.failure._replace(exit_code=0))


def end_columns(verdict: Verdict, ended: float) -> dict[str, Any]:
    """Return the last columns of a job's row."""
    columns = last_columns(verdict, None, ended)
    # The results are where they are.
    del columns["model"]
    return columns


def _over(state: PodState, status: Mapping[str, Any]) -> PodState:
    ended = [each["state"]["terminated"] for each in _containers(status) if "terminated" in each.get("state", {})]
    # An init container that a cluster adds comes before the host's own, which never ran if that failed.
    end = next((each for each in ended if each["exitCode"]), ended[-1] if ended else {})
    why = _OUT_OF_MEMORY if end.get("reason") == "OOMKilled" else ""
    if end.get("exitCode") == _NO_PROGRAM:
        why = _NO_PROGRAM_REMEDY
    message = end.get("message", "")
    record = None
    try:
        record = parse_failure(message)
    except ContractError:
        # Words of the program that starts the supervisor, as of a claim in which it may not write.
        why = why or (message.strip() if end.get("exitCode") else "")
    # The kubelet evicts, and refuses, pods: their containers have no say in it.
    if reason := status.get("reason"):
        why = f"{reason}: {status.get('message', '')}"
    code = end.get("exitCode", _KILLED if status["phase"] == "Failed" else 0)
    return state._replace(
        ended=_seconds(end.get("finishedAt")) or 0.0, exit_code=code, record=record, why=why, lost=bool(reason)
    )


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _message(states: Sequence[PodState], hosts: Sequence[str]) -> str:
    """Return where hosts run, or why they wait; equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for state in states:
        if state.phase != "running" and state.why:
            reasons.setdefault(state.why, []).append(state.host)
    if reasons:
        return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    nodes = ", ".join(dict.fromkeys(state.node for state in states if state.node))
    running = sum(state.phase == "running" for state in states)
    return f"{running} of {len(hosts)} pods run" + (f", on {nodes}" if nodes else "")


def described(before: str | None, state: tuple[str, str] | None, standstill: str, now: float, ledger: Ledger) -> str:
    """Add failed attempts, and a state with its message, to those of a description, under SageMaker's names."""
    known = {} if before is None else json.loads(before)
    transitions = known.get("SecondaryStatusTransitions", [])
    for attempt, time in list(zip(ledger.failed, ledger.times, strict=True))[len(known.get("Attempts", ())) :]:
        transitions = [*transitions, {"Status": RESTARTING, "StartTime": time, "StatusMessage": attempt.announced}]
    if state and (not transitions or (transitions[-1]["Status"], transitions[-1]["StatusMessage"]) != state):
        transitions = [*transitions, {"Status": state[0], "StartTime": now, "StatusMessage": state[1]}]
    attempts = {"Attempts": json.loads(describe_attempts(ledger.failed))["Attempts"]} if ledger.failed else {}
    # `records.standstill` reads it.
    still = {"Standstill": standstill} if standstill else {}
    return json.dumps({"SecondaryStatusTransitions": transitions, **attempts, **still})


def _seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
