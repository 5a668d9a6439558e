"""The fates of an attempt's hosts, and its own, from the states of their pods. Pure.

a host's pod                                          the host
over                                                  over; its exit code is known
gone, or another one in its place                     lost
deleted, and not over although its grace is over      lost: its node is away. It may still run
deleted, on a node that the cluster does not hear     the same, at once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from herringbone.backends.kubernetes.states import DELETED, PodState
from herringbone_contract.failure import STOPPED_CODE

# A kubelet that lives has removed a pod this long after its grace.
_MARGIN_SECONDS = 15.0
# Why the cluster deletes a pod, in events about it: the first of these says most.
_REASONS = ("Preempted", "Evicted", "NodeNotReady", "TaintManagerEviction")
_CUT_OFF = "its node is away, and it may still run there"


def with_losses(states: Iterable[PodState], *, now: float) -> list[PodState]:
    """Return the states with hosts as lost whose pods are deleted, and cannot be heard or have ended by that."""
    return [_with_loss(state, now) for state in states]


def _with_loss(state: PodState, now: float) -> PodState:
    if state.leaving is None:
        return state
    if state.phase == "over":
        # It was told to go, and is innocent.
        is_told = state.exit_code == STOPPED_CODE and state.record is None
        return state._replace(lost=True, why=DELETED) if is_told else state
    if state.phase == "running" and (state.is_away or now > state.leaving + _MARGIN_SECONDS):
        return state._replace(phase="over", exit_code=137, ended=now, why=_CUT_OFF, lost=True, is_seen=False)
    return state


def is_over(states: Sequence[PodState], num_hosts: int, *, stopped: bool, silence: float, now: float) -> bool:
    """Report whether an attempt is over, and no host of it can still write anything.

    A host that nobody hears may still run. It ends by itself once it has lost another one, within `silence` seconds. A
    host that is alone on its node, or with all the others, is waited for, as a StatefulSet does: nothing else would
    keep two attempts from writing to one claim. `states` are those of `with_losses`, each loss with the time of its
    first sight.
    """
    over = [state for state in states if state.phase == "over"]
    if any(state.phase == "running" for state in states):
        return False
    if not (stopped or len(over) == num_hosts or any(state.exit_code for state in over)):
        return False
    unseen = [state for state in over if not state.is_seen]
    if stopped or not unseen:
        return True
    if len(unseen) == num_hosts and all(state.pod for state in unseen):
        return False
    return now - max(state.ended for state in over) >= silence


def why_it_went(state: PodState, pod: Mapping[str, Any] | None, events: Iterable[Mapping[str, Any]]) -> str:
    """Return why a host is lost: in the cluster's own words, from its pod and events about it, where there are any."""
    words = _words(pod, events)
    return words or state.why if state.why == DELETED else "; ".join(filter(None, (words, state.why)))


def _words(pod: Mapping[str, Any] | None, events: Iterable[Mapping[str, Any]]) -> str:
    for condition in [] if pod is None else pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    known = {event["reason"]: event.get("message", "") for event in events}
    return next((f"{reason}: {known[reason]}" for reason in _REASONS if reason in known), "")


def fitting_count(states: Sequence[PodState], num_hosts: int, fewer: Sequence[int]) -> int | None:
    """Return with how many hosts an attempt can go on of which some find no node; None where it has to wait."""
    placed = sum(state.phase != "waiting" for state in states)
    return next((count for count in fewer if count <= placed < num_hosts), None)
