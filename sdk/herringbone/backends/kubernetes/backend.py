"""`k8s:NAMESPACE`: hosts are pods, and the cluster's own controllers keep them.

client      ConfigMap, Secret, Service, a Job of each host -> API server; then reads the pods' states and logs
cluster     queue, nodes, limits; keeps the pods that are over until `rm`

The ConfigMap owns all other objects, so its deletion leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.detached import stop_grace
from herringbone.backends.kubernetes import review
from herringbone.backends.kubernetes.api import Api, Cluster, path_of
from herringbone.backends.kubernetes.attempts.orders import clean_up, stop_hosts
from herringbone.backends.kubernetes.data.claim_results import Results, RunningLogs
from herringbone.backends.kubernetes.data.found import is_same, jobs_in
from herringbone.backends.kubernetes.data.packing import (
    fetch_part,
    model_column,
    open_results,
    packed_here,
    repack_results,
    results_address,
)
from herringbone.backends.kubernetes.data.parts import clear_parts, send_parts, take_back_parts
from herringbone.backends.kubernetes.data.reader import Reader
from herringbone.backends.kubernetes.files import job_files
from herringbone.backends.kubernetes.job_columns import log_pods, look, num_log_pods
from herringbone.backends.kubernetes.ledger import (
    CONFLICT,
    Ledger,
    change,
    delete,
    list_pods,
    note_end,
    owner_uid,
    parse_ledger,
    read_owner,
)
from herringbone.backends.kubernetes.logs import JobLogs
from herringbone.backends.kubernetes.names import (
    ObjectNames,
    label_query,
    namespace_of,
    parse_namespace,
    settings_of,
)
from herringbone.backends.kubernetes.objects import attempt_objects, controller, job_objects, owner
from herringbone.backends.kubernetes.pods import PodContext, has_parts
from herringbone.backends.kubernetes.states import PodState, host_states
from herringbone.backends.lifecycle import claim, client_died, client_lives, poll_until_done, settle
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.shown_logs import ShownLogs
from herringbone.plan.plan import parse_plan
from herringbone.records.home import Home, find_home
from herringbone.records.index import STOPPING, JobRecord
from herringbone.show.console import Console
from herringbone.system.interrupt import OnInterrupt
from herringbone.system.polling import Pace
from herringbone.system.progress import Progress
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import (
    JobNameError,
    JobNotFoundError,
    KubernetesError,
    RequestError,
    UnsupportedError,
)
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Answers, EventSource, LogSource
    from herringbone.protocols.host_access import HostAccess
    from herringbone.records.download import Part
    from herringbone_contract.events.requests import Request

# One reader sends few requests: all users of the cluster share its API server.
_PACE = Pace(shortest=0.5, longest=5.0, slower=1.3, jitter=0.25)
_ASK_SECONDS = 0.5
_KILL_SECONDS = 30.0
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)
_END_COLUMNS = ("status", "secondary_status", "started", "ended", "failure", "model")
_NOT_YET = "is not in this release yet for jobs on Kubernetes"


def make_backend() -> KubernetesBackend:
    """Return the backend for this user's jobs."""
    return KubernetesBackend(find_home(), os.environ)


class KubernetesBackend(OwnHostsBackend):
    """Runs jobs as pods; `connect` returns the cluster of a context of the kubeconfig, None for the current one."""

    name = "kubernetes"
    pace = _PACE
    on_interrupt: OnInterrupt = "ask"

    def __init__(
        self, home: Home, environ: Mapping[str, str], *, connect: Callable[[str | None], Api] = Cluster
    ) -> None:
        super().__init__(home)
        self._environ = environ
        self._connect = connect
        self._clusters: dict[str | None, Api] = {}
        # `time.monotonic()` of the last question about each job.
        self._asked: dict[str, float] = {}

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        review.check(plan, exclude=self._home.path)
        return review.unused(plan)

    def request(self, plan: JobPlan) -> dict[str, Any]:
        return {"objects": job_objects(plan, self._context(plan))}

    def try_out(self, plan: JobPlan) -> None:
        """Have the API server try every object, with placeholders for secrets: its audit log may show them."""
        api, namespace = self._cluster(settings_of(plan).context), namespace_of(plan)
        for each in self.request(plan)["objects"]:
            api.call("POST", path_of(each["kind"], namespace), each, dryRun="All")

    def submit(self, plan: JobPlan) -> None:
        settings = settings_of(plan)
        if settings.workload == "trainjob":
            # Pods of one template are not named after their hosts.
            raise UnsupportedError(f"kubernetes: workload: submitting a trainjob {_NOT_YET}; `plan` shows it")
        namespace, api = namespace_of(plan), self._cluster(settings.context)
        context = self._context(plan)
        service = {"context": settings.context, "namespace": namespace}
        # Before the row: files that are too large refuse the job.
        with job_files(plan, os.urandom(32), exclude=self._home.path) as (plan, files, parts):
            # The request has a pod of each host, which is too much for a row.
            plan = msgspec.structs.replace(plan, request=None)
            with claim(plan, self.name, self._home, service=json.dumps(service)) as job:
                job.make_folder()
                self._home.job(plan.job_name).logs.mkdir()
                made = self._create_owner(api, plan, context)
                try:
                    context = context._replace(owner=made["metadata"]["uid"])
                    send_parts(Reader(api, plan), parts, Progress())
                    # The controller last: it finds all others.
                    keeper = [controller(plan, context)] if settings.service_account else []
                    for each in (*attempt_objects(plan, context, files), *keeper):
                        api.call("POST", path_of(each["kind"], namespace), each)
                    # Another job of this name may follow in the namespace.
                    service |= {"uid": context.owner}
                    self._index.update(plan.job_name, client=None, service=json.dumps(service))
                except BaseException:
                    try:
                        if parts:
                            take_back_parts(api, plan)
                    finally:
                        with contextlib.suppress(KubernetesError):
                            delete(api, "ConfigMap", namespace, context.names.job)
                    raise

    def find(self, name: str, session: object = None) -> None:
        """See `Backend.find`; for a job of another machine, `session` is the instance type."""
        if not isinstance(session, str):
            super().find(name, session)
            return
        if name not in self.find_jobs(session):
            raise JobNotFoundError(f"job {name}: {session} has none of that name; `herringbone hosts jobs {session}`")

    def find_jobs(self, instance_type: str, context: str | None = None) -> list[str]:
        """Return the names of all jobs of `k8s:NAMESPACE`, whoever submitted them, the newest first.

        The jobs are in this index from then on, as if they had been submitted here. Raises `KubernetesError`.
        """
        self._home.make()
        records = jobs_in(self._cluster(context), parse_namespace(instance_type), context)
        known = {record.name: record for record in self._index.all()}
        for record in records:
            if record.name not in known:
                self._index.add(record)
            elif not is_same(known[record.name], record):
                Console(sys.stderr).say(
                    f"{record.name}: left out: this machine has another job of that name; "
                    f"`herringbone rm {record.name}` removes it here"
                )
        return [one.name for one in records if is_same(known.get(one.name, one), one)]

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done or client_lives(record):
            return record
        if time.monotonic() - self._asked.get(name, -_ASK_SECONDS) < _ASK_SECONDS:
            return record
        api, namespace, names = self._place(record)
        pods = list_pods(api, namespace, names)
        self._asked[name] = time.monotonic()
        stored = self._owner_of(record)
        if stored is None:
            if record.client is not None:
                return settle(self._index, name, client_died("the cluster had the job"))
            return settle(
                self._index, name, Failure(exit_code=0, message=f"its objects in namespace {namespace} were deleted")
            )
        if record.client is not None and self._is_unfinished(record, parse_ledger(stored)):
            # A client that was killed before it had made all hosts. Only the owner's reader reaches what it has sent.
            stays, died = clear_parts(api, parse_plan(record.plan_dict)), client_died("the cluster had the job")
            delete(api, "ConfigMap", namespace, names.job)
            return settle(self._index, name, died._replace(message="; ".join(filter(None, (died.message, stays)))))
        columns = look(api, namespace, record, stored, pods)
        record = settle(self._index, name, {"client": None, **columns, **model_column(pods, columns, record)})
        if record.done:
            names = names._replace(attempt=parse_ledger(stored).attempt)
            clean_up(api, namespace, names, pods, is_set=_is_set(record))
            with contextlib.suppress(KubernetesError):
                note_end(api, namespace, names.job, {column: getattr(record, column) for column in _END_COLUMNS})
            clear_parts(api, parse_plan(record.plan_dict))
        return record

    def logs(self, name: str) -> LogSource:
        return ShownLogs(self._lines(name))

    def events(self, name: str) -> EventSource:
        # Imported here: a job that is only submitted has no reader of events.
        from herringbone.backends.kubernetes.events import AttemptEvents

        return AttemptEvents(self._lines(name), lambda: self.describe(name), lambda: self.bill(name))

    def ask(self, name: str, request: Request) -> Answers:
        # Imported here: only clients that look into a running job need it.
        from herringbone.backends.kubernetes.access import PodAnswers

        record = self._index.get(name)
        api, namespace, _ = self._place(record)
        return PodAnswers(api, namespace, self._hosts_pods(record), request)

    def access(self, name: str, host: str) -> HostAccess:
        from herringbone.backends.kubernetes.access import PodAccess, running

        record = self._index.get(name)
        api, namespace, _ = self._place(record)
        return PodAccess(api, namespace, running(host, self._hosts_pods(record)[host]))

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self.describe(name)
        if record.done:
            return
        seconds = stop_grace() if grace is None else grace
        self._end(record, seconds)
        if not seconds:
            poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=self.pace.shortest)

    def kill(self, name: str) -> None:
        self.stop(name, 0)

    def forget(self, record: JobRecord) -> str:
        try:
            api, namespace, names = self._place(record)
            plan, is_there = parse_plan(record.plan_dict), self._owner_of(record) is not None
            if not is_there and has_parts(plan):
                # Of an interrupted submission. Without an owner, no pod can look into the claim.
                self._create_owner(api, plan, self._context(plan))
                is_there = True
            stays = clear_parts(api, plan)
            if is_there:
                delete(api, "ConfigMap", namespace, names.job)
        except KubernetesError as error:
            return f"the job's objects stay in the cluster: {error}"
        except JobNameError:
            # Another job has the name by now, and the folder in the claim.
            return ""
        return stays

    def repack(self, name: str, say: Callable[[str], None]) -> Path:
        record = self.describe(name)
        model = repack_results(self._results(record), record, self._home.job(name), say)
        self._index.update(name, model=str(model))
        return model

    def output_of(self, record: JobRecord) -> str | None:
        if (packed := packed_here(self._home.job(record.name), "output")) is not None:
            return str(packed)
        return results_address(record.plan_dict) if record.done else None

    def fetch(self, name: str, part: Part, into: Path) -> Path:
        record = self.describe(name)
        return fetch_part(self._results(record), record, self._home.job(name), part, into)

    def _held(self, record: JobRecord) -> float:
        # From the first pod's start on, also between two attempts: nobody here has noted the states of a job whose
        # client was away.
        ended = record.ended if record.done and record.ended is not None else time.time()
        return 0.0 if record.started is None else max(0.0, ended - record.started)

    def _results(self, record: JobRecord) -> Results:
        api, namespace, names = self._place(record)

        def running() -> dict[str, str]:
            pods = self._hosts_pods(record).items()
            return {host: pod.pod for host, pod in pods if pod is not None and pod.phase == "running"}

        uid = partial(owner_uid, api, namespace, names.job)
        return open_results(api, parse_plan(record.plan_dict), RunningLogs(api, namespace, running, uid))

    def _context(self, plan: JobPlan) -> PodContext:
        return PodContext(
            names=ObjectNames(plan.job_name),
            namespace=namespace_of(plan),
            grace=stop_grace(),
            passed_on={name: self._environ[name] for name in _PASSED_ON if name in self._environ},
        )

    def _create_owner(self, api: Api, plan: JobPlan, context: PodContext) -> dict[str, Any]:
        try:
            made: dict[str, Any] = api.call("POST", path_of("ConfigMap", context.namespace), owner(plan, context))
        except KubernetesError as error:
            if error.status != CONFLICT:
                raise
            raise JobNameError(
                f"job name {plan.job_name!r}: namespace {context.namespace} has a ConfigMap {context.names.job}, of a "
                "job of another user or machine; choose another name"
            ) from None
        return made

    def _lines(self, name: str) -> LogSource:
        record = self._index.get(name)
        api, namespace, names = self._place(record)
        first = self._host_names(name)[0]

        def pods() -> tuple[list[tuple[str, str]], int]:
            found = list_pods(api, namespace, names)
            return log_pods(found, first), num_log_pods(self.describe(name), found)

        return JobLogs(api, namespace, pods, self._results(record))

    def _end(self, record: JobRecord, grace: float) -> None:
        """Mark a job as stopping, and tell its hosts."""
        api, namespace, names = self._place(record)
        self._index.update(record.name, unless_done=True, status=STOPPING, secondary_status=STOPPING)
        # Before the pods hear of it: their ends would be a reason for another attempt.
        change(api, namespace, names.job, lambda ledger: msgspec.structs.replace(ledger, stop=grace))
        stop_hosts(api, namespace, names, grace, is_set=_is_set(record))
        self._asked.pop(record.name, None)

    def _hosts_pods(self, record: JobRecord) -> dict[str, PodState | None]:
        """Return the pod of each host in the present attempt, None for a host without one."""
        api, namespace, names = self._place(record)
        stored = read_owner(api, namespace, names.job)
        hosts, ledger = self._host_names(record.name), Ledger() if stored is None else parse_ledger(stored)
        states = host_states(list_pods(api, namespace, names), hosts, ledger, time.time())
        return {host: next((state for state in states if state.host == host), None) for host in hosts}

    def _is_unfinished(self, record: JobRecord, ledger: Ledger) -> bool:
        """Report whether the first attempt never had all of its hosts; nothing else has happened to such a job."""
        if ledger != Ledger():
            return False
        api, namespace, names = self._place(record)
        kind, wanted = "Job", set(map(names.host, self._host_names(record.name)))
        if _is_set(record):
            kind, wanted = "JobSet", {names.hosts}
        found = api.call("GET", path_of(kind, namespace), **label_query(names.labels()))["items"]
        return not {each["metadata"]["name"] for each in found} >= wanted

    def _owner_of(self, record: JobRecord) -> dict[str, Any] | None:
        """Return the job's ConfigMap; None when it is gone, also where another job has its name by now."""
        api, namespace, names = self._place(record)
        stored, uid = read_owner(api, namespace, names.job), json.loads(record.service or "{}").get("uid")
        return None if stored is None or uid not in (None, stored["metadata"]["uid"]) else stored

    def _place(self, record: JobRecord) -> tuple[Api, str, ObjectNames]:
        service = json.loads(record.service or "{}")
        if "namespace" not in service:
            raise RequestError(f"job {record.name}: its row does not say in which namespace it runs")
        return self._cluster(service["context"]), service["namespace"], ObjectNames(record.name)

    def _cluster(self, context: str | None) -> Api:
        if context not in self._clusters:
            self._clusters[context] = self._connect(context)
        return self._clusters[context]


def _is_set(record: JobRecord) -> bool:
    return (record.plan_dict["options"].get("kubernetes") or {}).get("workload") == "jobset"
