"""`k8s:NAMESPACE`: hosts are pods, and the cluster's own controllers keep them.

client      ConfigMap, Secret, Service, a Job of each host -> API server; then reads the pods' states and logs
cluster     queue, nodes, limits; keeps the pods that are over until `rm`

The ConfigMap owns all other objects, so its deletion leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.detached import stop_grace
from herringbone.backends.kubernetes import review
from herringbone.backends.kubernetes.api import Api, Cluster, path_of
from herringbone.backends.kubernetes.files import secret_files
from herringbone.backends.kubernetes.logs import JobLogs
from herringbone.backends.kubernetes.names import ObjectNames, namespace_of, settings_of
from herringbone.backends.kubernetes.objects import attempt_objects, job_objects, owner
from herringbone.backends.kubernetes.pods import CONTAINER, PodContext
from herringbone.backends.kubernetes.states import columns_of, pod_state, refusal_of
from herringbone.backends.lifecycle import claim, client_died, client_lives, poll_until_done, settle
from herringbone.backends.own_hosts import OwnHostsBackend
from herringbone.backends.shown_logs import ShownLogs
from herringbone.records.home import Home, find_home
from herringbone.records.index import STOPPING, JobRecord
from herringbone.system.interrupt import OnInterrupt
from herringbone.system.polling import Pace
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import JobNameError, KubernetesError, RequestError, UnsupportedError
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
_NOT_FOUND, _CONFLICT = 404, 409
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)
_WITH_DEPENDENTS = {"propagationPolicy": "Background"}
_NOT_YET = "is not in this release yet for jobs on Kubernetes"
# $0 are the seconds of grace. The first process of a pod cannot be killed from inside; it ends when all others have.
_STOP = "kill -TERM 1; (sleep $0; kill -KILL -1) >/dev/null 2>&1 &"
_KILL = "kill -KILL -1"


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
        if settings.workload != "job":
            raise UnsupportedError(
                f"kubernetes: workload: submitting a {settings.workload} {_NOT_YET}; `plan` shows it"
            )
        namespace, api = namespace_of(plan), self._cluster(settings.context)
        context = self._context(plan)
        service = json.dumps({"context": settings.context, "namespace": namespace, "attempt": 1})
        # Before the row: files that are too large refuse the job.
        files = secret_files(plan, os.urandom(32), exclude=self._home.path)
        # The request has a pod of each host, which is too much for a row.
        plan = msgspec.structs.replace(plan, request=None)
        with claim(plan, self.name, self._home, service=service) as job:
            job.make_folder()
            self._home.job(plan.job_name).logs.mkdir()
            made = self._create_owner(api, plan, context)
            try:
                context = context._replace(owner=made["metadata"]["uid"])
                for each in attempt_objects(plan, context, files):
                    api.call("POST", path_of(each["kind"], namespace), each)
                self._index.update(plan.job_name, client=None)
            except BaseException:
                with contextlib.suppress(KubernetesError):
                    _delete(api, "ConfigMap", namespace, context.names.job)
                raise

    def describe(self, name: str) -> JobRecord:
        record = self._index.get(name)
        if record.done or client_lives(record):
            return record
        if time.monotonic() - self._asked.get(name, -_ASK_SECONDS) < _ASK_SECONDS:
            return record
        api, namespace, names = self._place(record)
        pods = self._pods(record)
        self._asked[name] = time.monotonic()
        stopped = record.status == STOPPING
        if not self._exists(api, namespace, names.job):
            if record.client is not None:
                return settle(self._index, name, client_died("the cluster had the job"))
            return settle(
                self._index, name, Failure(exit_code=0, message=f"its objects in namespace {namespace} were deleted")
            )
        hosts, refusal = self._host_names(name), ""
        if len(pods) < len(hosts):
            events = api.call("GET", path_of("Event", namespace), fieldSelector="involvedObject.kind=Job")["items"]
            refusal = refusal_of(events, {names.host(host) for host in hosts})
        columns = columns_of(
            pods, hosts, stopped=stopped, description=record.description, now=time.time(), refusal=refusal
        )
        record = settle(self._index, name, {"client": None, **columns})
        if record.done:
            self._clean_up(api, namespace, names, pods)
        return record

    def logs(self, name: str) -> LogSource:
        return ShownLogs(self._lines(name))

    def events(self, name: str) -> EventSource:
        # Imported here: a job that is only submitted has no reader of events.
        from herringbone.backends.sagemaker.events import ServiceEvents

        return ServiceEvents(self._lines(name), lambda: self.describe(name), lambda: self.bill(name))

    def ask(self, name: str, request: Request) -> Answers:
        raise UnsupportedError(f"job {name}: {request['kind']!r} {_NOT_YET}")

    def access(self, name: str, host: str) -> HostAccess:
        raise UnsupportedError(f"job {name}: a shell on {host} {_NOT_YET}; `kubectl exec` opens one in its pod")

    def stop(self, name: str, grace: float | None = None) -> None:
        record = self.describe(name)
        if record.done:
            return
        if grace == 0:
            self.kill(name)
            return
        seconds = stop_grace() if grace is None else grace
        self._end(record, ["/bin/sh", "-c", _STOP, f"{seconds:g}"])

    def kill(self, name: str) -> None:
        record = self.describe(name)
        if record.done:
            return
        self._end(record, ["/bin/sh", "-c", _KILL])
        poll_until_done(self.describe, name, seconds=_KILL_SECONDS, pause=self.pace.shortest)

    def forget(self, record: JobRecord) -> str:
        try:
            api, namespace, names = self._place(record)
            _delete(api, "ConfigMap", namespace, names.job)
        except KubernetesError as error:
            return f"the job's objects stay in the cluster: {error}"
        return ""

    def repack(self, name: str, say: Callable[[str], None]) -> Path:  # noqa: ARG002
        raise UnsupportedError(f"job {name}: `repack` {_NOT_YET}")

    def output_of(self, record: JobRecord) -> str | None:
        return f"{record.plan_dict['options']['output_path'].rstrip('/')}/{record.name}" if record.done else None

    def fetch(self, name: str, part: Part, into: Path) -> Path:  # noqa: ARG002
        raise UnsupportedError(f"job {name}: fetching its {part} {_NOT_YET}; it is below its output_path in the claim")

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
            if error.status != _CONFLICT:
                raise
            raise JobNameError(
                f"job name {plan.job_name!r}: namespace {context.namespace} has a ConfigMap {context.names.job}, of a "
                "job of another user or machine; choose another name"
            ) from None
        return made

    def _lines(self, name: str) -> LogSource:
        record = self._index.get(name)
        api, namespace, _ = self._place(record)
        return JobLogs(
            api, namespace, lambda: [(state.pod, state.host) for state in map(pod_state, self._pods(record))]
        )

    def _end(self, record: JobRecord, command: list[str]) -> None:
        """Mark a job as stopping, run a command in the pods that run, and delete those that do not run yet."""
        api, namespace, names = self._place(record)
        self._index.update(record.name, unless_done=True, status=STOPPING, secondary_status=STOPPING)
        for state in map(pod_state, self._pods(record)):
            if state.phase == "running":
                api.run(namespace, state.pod, CONTAINER, command)
            elif state.phase != "over":
                _delete(api, "Job", namespace, names.host(state.host))
        self._asked.pop(record.name, None)

    def _clean_up(self, api: Api, namespace: str, names: ObjectNames, pods: list[dict[str, Any]]) -> None:
        """Delete what nobody needs after a job's end; its pods stay for their logs."""
        with contextlib.suppress(KubernetesError):
            for state in map(pod_state, pods):
                if state.phase != "over":
                    _delete(api, "Job", namespace, names.host(state.host))
            for kind in ("Secret", "Service"):
                _delete(api, kind, namespace, names.hosts)

    def _pods(self, record: JobRecord) -> list[dict[str, Any]]:
        api, namespace, names = self._place(record)
        items: list[dict[str, Any]] = api.call("GET", path_of("Pod", namespace), **names.selector())["items"]
        return items

    @staticmethod
    def _exists(api: Api, namespace: str, name: str) -> bool:
        try:
            api.call("GET", path_of("ConfigMap", namespace, name))
        except KubernetesError as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    def _place(self, record: JobRecord) -> tuple[Api, str, ObjectNames]:
        service = json.loads(record.service or "{}")
        if "namespace" not in service:
            raise RequestError(f"job {record.name}: its row does not say in which namespace it runs")
        return self._cluster(service["context"]), service["namespace"], ObjectNames(record.name, service["attempt"])

    def _cluster(self, context: str | None) -> Api:
        if context not in self._clusters:
            self._clusters[context] = self._connect(context)
        return self._clusters[context]


def _delete(api: Api, kind: str, namespace: str, name: str) -> None:
    """Delete an object with all that it owns; one that is gone is no error."""
    try:
        api.call("DELETE", path_of(kind, namespace, name), _WITH_DEPENDENTS)
    except KubernetesError as error:
        if error.status != _NOT_FOUND:
            raise
