"""The controller of a job, in a pod of its own: `python3 -m herringbone.backends...keeper NAMESPACE JOB`.

    ledger + pods --> note who runs --> tell who is to end --> attempt over --> end_attempt --> another ledger
         ^                                                                                          |
         +---------- make the objects of its attempt, delete those of older ones <------------------+

Nothing else is state: each round reads all, and changes the ledger by its version, so another controller may take over
at any moment, and of two, one reads again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from herringbone.backends.kubernetes.api import Api, Cluster, path_of
from herringbone.backends.kubernetes.attempts.fates import fitting_count, is_over, why_it_went, with_losses
from herringbone.backends.kubernetes.attempts.hosts import NotNowError, PodHosts
from herringbone.backends.kubernetes.attempts.next_attempt import context_of, current_plan, next_objects, silence_of
from herringbone.backends.kubernetes.attempts.orders import stop_command
from herringbone.backends.kubernetes.ledger import (
    CONFLICT,
    Ledger,
    Noted,
    delete,
    list_events,
    parse_ledger,
    read_owner,
    save,
)
from herringbone.backends.kubernetes.names import Label, ObjectNames, PodKind, label_query
from herringbone.backends.kubernetes.pods import CONTAINER
from herringbone.backends.kubernetes.states import PodState, end_columns, host_states
from herringbone.controller.attempt_end import end_attempt
from herringbone.controller.hosts import Conclusion
from herringbone.controller.verdict import Verdict
from herringbone.plan.plan import parse_plan
from herringbone.records.index import FAILED, STOPPED
from herringbone_contract.errors import KubernetesError
from herringbone_contract.failure import Failure

# Between two rounds; while the API server is away, more and more.
_ROUND_SECONDS, _LONGEST_SECONDS, _SLOWER, _JITTER = 3.0, 15.0, 1.6, 0.25
# The others of a host that has ended badly get this long to end by themselves.
_PATIENCE_SECONDS = 30.0
# A host that finds no node for this long may be left out of another attempt.
_WAIT_SECONDS = 60.0
# A pod's kubelet may be away for a moment.
_TRIES = 3
# The policies search the end of a log.
_LOG_LINES, _LOG_BYTES = "20000", str(16 << 20)


class JobKeeper:
    """Keeps one job; `clock` returns seconds since 1970."""

    def __init__(self, api: Api, namespace: str, job: str, *, clock: Callable[[], float] = time.time) -> None:
        self._api, self._namespace, self._clock = api, namespace, clock
        self._names = ObjectNames(job)
        # When a loss was seen first, by the uid of its pod, with the cluster's words.
        self._losses: dict[str, tuple[float, str]] = {}
        # How often a pod was told in vain to end within a grace, by uid and grace; None once it was.
        self._told: dict[tuple[str, float], int | None] = {}
        self._stored: dict[str, Any] = {}

    def step(self) -> bool:
        """Look at the job once, and do what follows; return whether nothing is left to do."""
        stored = read_owner(self._api, self._namespace, self._names.job)
        # Without it the cluster deletes all that it owns.
        if stored is None or "deletionTimestamp" in stored["metadata"]:
            return True
        self._stored, ledger = stored, parse_ledger(stored)
        pods = self._list("Pod", part=PodKind.HOST)
        if ledger.end is not None:
            self._clean_up(pods)
            return True
        if not ledger.made:
            return self._make(ledger, pods)
        whole = parse_plan(json.loads(stored["data"]["plan"]))
        plan = current_plan(whole, ledger)
        hosts, now, stopped = [host.name for host in plan.hosts], self._clock(), ledger.stop is not None
        self._delete_stale(pods, ledger)
        states = host_states(pods, hosts, ledger, now)
        if fresh := {
            state.host: Noted(state.uid, state.node, state.started or now)
            for state in states
            if state.phase in ("running", "over") and state.host not in ledger.pods
        }:
            self._save(msgspec.structs.replace(ledger, pods=ledger.pods | fresh))
            return False
        states += self._without_job(states, hosts, ledger, now)
        states = [self._explained(state, pods) for state in with_losses(states, now=now)]
        context = context_of(stored, ledger)
        if is_over(states, len(hosts), stopped=stopped, silence=silence_of(context), now=now):
            ended = PodHosts(whole, ledger, states, read_log=self._log, write=self._save)
            if end_attempt(ended) is Conclusion.RESTART:
                return False
            self._clean_up(pods)
            return True
        self._tell(states, ledger, context.grace, now)
        fewer = [] if stopped or not ledger.failed or now - ledger.since < _WAIT_SECONDS else plan.fewer_hosts
        if count := fitting_count(states, len(hosts), fewer):
            print(f"[{hosts[0]}] {count} of {len(hosts)} hosts find a node: going on with these", flush=True)
            self._save(ledger.next(hosts=count))
        return False

    def _make(self, ledger: Ledger, pods: Sequence[Mapping[str, Any]]) -> bool:
        """Make the objects of a new attempt, as far as they do not exist; those of a stopped job are not made."""
        if ledger.stop is not None:
            end = end_columns(Verdict(STOPPED, STOPPED), self._clock())
            self._save(msgspec.structs.replace(ledger, end=end))
            return False
        secrets = self._list("Secret")
        if not secrets:
            failure = Failure(exit_code=0, message="somebody has deleted its Secret, which has its code and its files")
            end = end_columns(Verdict(FAILED, FAILED, failure), self._clock())
            self._save(msgspec.structs.replace(ledger, end=end))
            return False
        newest = max(secrets, key=lambda each: each["metadata"]["creationTimestamp"])
        for each in next_objects(self._stored, ledger, newest["data"], os.urandom(32)):
            try:
                self._api.call("POST", path_of(each["kind"], self._namespace), each)
            except KubernetesError as error:
                # Of a controller before this one.
                if error.status != CONFLICT:
                    raise
        self._save(msgspec.structs.replace(ledger, made=True, since=self._clock()))
        self._delete_stale(pods, ledger)
        kept = self._names._replace(attempt=ledger.attempt).hosts
        for kind in ("Secret", "Service"):
            for name in {each["metadata"]["name"] for each in self._list(kind)} - {kept}:
                self._delete(kind, name)
        return False

    def _without_job(
        self, states: Sequence[PodState], hosts: Sequence[str], ledger: Ledger, now: float
    ) -> list[PodState]:
        """Return, as lost, hosts that never had a pod, and never will: somebody has deleted their Job."""
        missing = set(hosts) - {state.host for state in states}
        if not missing or now - ledger.since < _PATIENCE_SECONDS:
            return []
        names, lost = self._names._replace(attempt=ledger.attempt), []
        jobs = {each["metadata"]["name"]: each.get("status", {}) for each in self._list("Job")}
        for host in sorted(missing):
            conditions = jobs.get(names.host(host), {}).get("conditions", ())
            failed = next((each for each in conditions if each["type"] == "Failed" and each["status"] == "True"), None)
            if failed or names.host(host) not in jobs:
                why = f"its Job {names.host(host)} " + (f"failed: {failed.get('message')}" if failed else "is gone")
                lost.append(PodState(host, "", "over", why=why, ended=now, exit_code=137, lost=True, uid=host))
        return lost

    def _explained(self, state: PodState, pods: Sequence[Mapping[str, Any]]) -> PodState:
        """Give a loss the time at which it was seen first, and the cluster's words."""
        if not state.lost or (state.is_seen and state.leaving is None):
            return state
        if state.uid not in self._losses:
            events = list_events(self._api, self._namespace, uid=state.uid)
            pod = next((pod for pod in pods if pod["metadata"].get("uid") == state.uid), None)
            self._losses[state.uid] = state.ended or self._clock(), why_it_went(state, pod, events)
        seen, words = self._losses[state.uid]
        return state._replace(why=words, ended=state.ended if state.is_seen else seen)

    def _tell(self, states: Sequence[PodState], ledger: Ledger, grace: float, now: float) -> None:
        """Have hosts end: all of a stopped job, and those that should have ended with another one."""
        ends = [state.ended for state in states if state.phase == "over" and state.exit_code]
        cut_off = any(state.phase == "over" and not state.is_seen and state.pod for state in states)
        is_due = bool(ends) and (cut_off or now - min(ends) > _PATIENCE_SECONDS)
        if ledger.stop is None and not is_due:
            return
        grace = grace if ledger.stop is None else ledger.stop
        for state in states:
            tries = self._told.get((state.uid, grace), 0)
            if state.phase == "over" or state.leaving is not None or tries is None:
                continue
            if state.phase == "running" and tries < _TRIES:
                self._told[state.uid, grace] = tries + 1
                self._api.run(self._namespace, state.pod, CONTAINER, stop_command(grace))
            else:
                # It never ran, or its kubelet does not answer: the cluster ends it, with its grace.
                self._delete("Job", self._names._replace(attempt=ledger.attempt).host(state.host))
            self._told[state.uid, grace] = None

    def _delete_stale(self, pods: Sequence[Mapping[str, Any]], ledger: Ledger) -> None:
        """Delete, with their grace, pods of older attempts that are not over; the others stay for their logs."""
        for pod in pods:
            labels, phase = pod["metadata"]["labels"], pod.get("status", {}).get("phase")
            is_over = phase in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
            if int(labels[Label.ATTEMPT]) < ledger.attempt and not is_over:
                names = self._names._replace(attempt=int(labels[Label.ATTEMPT]))
                self._delete("Job", names.host(labels[Label.HOST]))

    def _clean_up(self, pods: Sequence[Mapping[str, Any]]) -> None:
        """Delete what nobody needs after the job's end: pods that are over stay for their logs."""
        over = [pod["metadata"] for pod in pods if pod.get("status", {}).get("phase") in ("Succeeded", "Failed")]
        kept = {owner["name"] for each in over for owner in each.get("ownerReferences", ())}
        for kind, part in (("Job", PodKind.HOST), ("Secret", None), ("Service", None)):
            for name in {each["metadata"]["name"] for each in self._list(kind, part)} - kept:
                self._delete(kind, name)

    def _save(self, ledger: Ledger) -> None:
        save(self._api, self._namespace, self._stored, ledger)

    def _log(self, pod: str) -> bytes:
        try:
            return self._api.text(
                path_of("Pod", self._namespace, pod, "log"),
                container=CONTAINER,
                tailLines=_LOG_LINES,
                limitBytes=_LOG_BYTES,
            )
        except KubernetesError as error:
            # A pod that never ran, or whose kubelet is away, has no log.
            if error.status is None:
                raise
            return b""

    def _list(self, kind: str, part: str | None = None) -> list[dict[str, Any]]:
        labels = self._names.labels() | ({Label.PART: part} if part else {})
        items: list[dict[str, Any]] = self._api.call("GET", path_of(kind, self._namespace), **label_query(labels))[
            "items"
        ]
        return items

    def _delete(self, kind: str, name: str) -> None:
        delete(self._api, kind, self._namespace, name)


def keep(api: Api, namespace: str, job: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Keep a job until it is over. Raises `KubernetesError` for an account that may not even look at it."""
    keeper, failures, said = JobKeeper(api, namespace, job), 0, ""
    while True:
        try:
            if keeper.step():
                return
            failures, said = 0, said or " "
        except (KubernetesError, NotNowError) as error:
            refusal = error.refusal if isinstance(error, NotNowError) else error
            if refusal.denied and not said:
                raise refusal from None
            # With a conflict somebody else has changed the ledger, which is no trouble.
            if refusal.status != CONFLICT:
                failures += 1
                if str(refusal) != said:
                    said = str(refusal)
                    print(said, file=sys.stderr, flush=True)
        seconds = min(_LONGEST_SECONDS, _ROUND_SECONDS * _SLOWER**failures)
        sleep(seconds * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - spreads requests


def main() -> None:
    # The first process of a pod gets no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    namespace, job = sys.argv[1:]
    try:
        keep(Cluster(None), namespace, job)
    except KubernetesError as error:
        role = f"the Role that `herringbone hosts check k8s:{namespace} --role` prints"
        sys.exit(f"{error}; {role} suffices for the service account")


if __name__ == "__main__":
    main()
