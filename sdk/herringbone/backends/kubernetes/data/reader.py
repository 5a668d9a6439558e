"""The reader pod: it mounts the claims of a job, so that clients outside of the cluster can read and write there.

    client --POST Job hb-JOB-reader--> cluster --> pod: sleeps, and ends when nobody has used it for some minutes
    client --exec: tar, tail-------------------------->

It has the job's image, no token and no secret, and sees the job's own folders alone. The job's ConfigMap owns it, so
`rm` removes it, too. A second client finds the first one's pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.claims import Place, is_claim, literal, parse_place
from herringbone.backends.kubernetes.execution import Execution
from herringbone.backends.kubernetes.ledger import CONFLICT, NOT_FOUND, list_events, owner_uid
from herringbone.backends.kubernetes.names import JOB_NAME, ObjectNames, PodKind, namespace_of
from herringbone.backends.kubernetes.pods import CONTAINER, RESTRICTED, template_of
from herringbone.backends.kubernetes.states import PULLING, PodState, delay_of, pod_state, refusal_of
from herringbone.plan.plan import JobPlan
from herringbone.system.attached import STDOUT
from herringbone_contract.errors import KubernetesError, RequestError

# The job's results and its checkpoints in the pod.
RESULTS, CHECKPOINTS = "/herringbone/results", "/herringbone/checkpoints"
_CLAIMS = "/herringbone/claims"
# $0 are the seconds without use after which the pod ends. The glob has the processes of the pod, of which the shell
# itself is one; a command that was shorter than a turn has left the file.
_PROGRAM = """\
idle=0
while [ $idle -lt "$0" ]; do
    sleep 5
    idle=$((idle + 5))
    set -- /proc/[0-9]*
    if [ $# -gt 1 ] || [ -e /tmp/used ]; then idle=0; fi
    rm -f /tmp/used
done
"""
# $0 is the program, and the rest are its arguments.
_USE = ': >/tmp/used; exec "$0" "$@"'
_IDLE_SECONDS = 300
# In a namespace with a quota, each container must say what it needs.
_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
# Nodes fetch the image, which they have in most cases, and mount the claims.
START_SECONDS = 300.0
# A claim that is mounted elsewhere may become free; then the cluster's words about it are an answer.
_MOUNT_SECONDS = 60.0
_PAUSE_SECONDS = 0.5
# A claim on disks far away may be silent for a while, and a connection whose other end is gone is silent for ever.
SILENCE_SECONDS = 120.0
_SHOWN_BYTES = 1_000
_SIGNAL = 128


def reader_job(plan: JobPlan, owner: str) -> dict[str, Any]:
    """Return the Job of the reader pod; `owner` is the uid of the job's ConfigMap. Pure."""
    names = ObjectNames(plan.job_name)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": names.job, "uid": owner}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": _name(names),
            "namespace": namespace_of(plan),
            "labels": names.labels(),
            "annotations": {JOB_NAME: plan.job_name},
            "ownerReferences": [reference],
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "template": template_of(plan, names.labels(PodKind.READER, PodKind.READER), _pod(plan)),
        },
    }


def _pod(plan: JobPlan) -> dict[str, Any]:
    places = _places(plan)
    claims = {claim: f"claim-{n}" for n, claim in enumerate(dict.fromkeys(place.claim for place in places.values()))}
    shared = {
        "image": plan.arguments.image_uri,
        "securityContext": RESTRICTED,
        "resources": _RESOURCES,
        # Why a folder cannot be made in a claim is in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    # The kubelet would make a folder that is not there yet as root, for root alone.
    made = [literal(f"{_CLAIMS}/{claims[place.claim]}/{place.folder}") for place in places.values()]
    maker = {
        **shared,
        "name": "folders",
        "command": ["mkdir", "-p", "--", *made],
        "volumeMounts": [{"name": name, "mountPath": f"{_CLAIMS}/{name}"} for name in claims.values()],
    }
    mounts = [
        {
            "name": claims[place.claim],
            "mountPath": path,
            **({"subPath": place.folder} if place.folder else {}),
            **({"readOnly": True} if path == CHECKPOINTS else {}),
        }
        for path, place in places.items()
    ]
    container = {
        **shared,
        "name": CONTAINER,
        "command": ["/bin/sh", "-c", _PROGRAM, str(_IDLE_SECONDS)],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],  # noqa: S108 - an emptyDir of its own
    }
    return {
        "restartPolicy": "Never",
        # A shell that is a pod's first process takes no SIGTERM.
        "terminationGracePeriodSeconds": 1,
        "initContainers": [maker],
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in claims.items()),
        ],
    }


def _places(plan: JobPlan) -> dict[str, Place]:
    """Return the folders of claims that the reader mounts, by their paths in its pod."""
    options = plan.options
    places = {}
    if is_claim(options.output_path):
        places[RESULTS] = parse_place("output_path", str(options.output_path)).below(plan.job_name)
    if is_claim(options.checkpoint_s3_uri):
        places[CHECKPOINTS] = parse_place("checkpoint_s3_uri", str(options.checkpoint_s3_uri))
    return places


def _name(names: ObjectNames) -> str:
    return f"{names.job}-{PodKind.READER}"


class Output:
    """The output of a command in a pod, as a file that is read once; what it says about errors is kept apart."""

    def __init__(self, execution: Execution) -> None:
        self._execution, self._waiting = execution, b""
        self._errors = b""

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; b"" at the end. Raises `KubernetesError`."""
        while not self._waiting and (piece := self._execution.read()) is not None:
            channel, data = piece
            if channel == STDOUT:
                self._waiting = data
            else:
                self._errors = (self._errors + data)[:_SHOWN_BYTES]
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def check(self, *codes: int) -> None:
        """Raise `KubernetesError` for an exit code that is none of these; only after the end of the output."""
        if (code := self._execution.exit_code) not in codes:
            words = self._errors.decode("utf-8", "replace").strip()
            # A command that a signal has killed, as at the end of its container, may be run again elsewhere.
            status = None if code > _SIGNAL else code
            raise KubernetesError(f"a command in the pod ended with exit code {code}: {words}", status=status)

    def close(self) -> None:
        self._execution.close()


class Reader:
    """The reader pod of one job, which is made when it is first needed."""

    def __init__(
        self,
        api: Api,
        plan: JobPlan,
        *,
        start_seconds: float = START_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api, self._plan, self._namespace = api, plan, namespace_of(plan)
        self._names = ObjectNames(plan.job_name)
        self._start_seconds, self._clock, self._sleep = start_seconds, clock, sleep

    def run(self, *command: str) -> str:
        """Run a command, and return its output."""
        return self._api.run(self._namespace, self.pod(), CONTAINER, ["/bin/sh", "-c", _USE, *command])

    def output(self, *command: str) -> Output:
        """Start a command, and return its output as it comes."""
        return Output(self.execution(*command))

    def execution(self, *command: str, stdin: bool = False) -> Execution:
        place = (self._namespace, self.pod(), CONTAINER)
        return self._api.stream(place, ["/bin/sh", "-c", _USE, *command], seconds=SILENCE_SECONDS, stdin=stdin)

    def pod(self) -> str:
        """Return the name of the pod, which runs. Raises `RequestError` where the cluster cannot run it."""
        begin = self._clock()
        is_new = self._make()
        while True:
            state, elapsed = self._state(), self._clock() - begin
            if state is not None and state.phase == "running":
                return state.pod
            if state is not None and state.phase == "over" and not is_new:
                # It has ended by itself. Its Job would never start another.
                self._remove()
                is_new = self._make()
            elif why := self._obstacle(state, elapsed):
                name = _name(self._names)
                raise RequestError(f"job {self._plan.job_name}: pod {name}, which reads its claims, cannot run: {why}")
            self._sleep(_PAUSE_SECONDS)

    def _make(self) -> bool:
        """Make the pod's Job unless there is one, and report whether its pod is new."""
        if self._state() is not None:
            return False
        body = reader_job(self._plan, owner_uid(self._api, self._namespace, self._names.job))
        try:
            self._api.call("POST", path_of("Job", self._namespace), body)
        except KubernetesError as error:
            # Another client has made it.
            if error.status != CONFLICT:
                raise
        return True

    def _remove(self) -> None:
        path, begin = path_of("Job", self._namespace, _name(self._names)), self._clock()
        try:
            self._api.call("DELETE", path, {"propagationPolicy": "Foreground"})
            while self._clock() - begin < self._start_seconds:
                self._api.call("GET", path)
                self._sleep(_PAUSE_SECONDS)
        except KubernetesError as error:
            if error.status != NOT_FOUND:
                raise
            return
        raise RequestError(f"job {self._plan.job_name}: the Job {_name(self._names)} is deleted, and does not go")

    def _state(self) -> PodState | None:
        query = self._names.selector(PodKind.READER)
        pods = self._api.call("GET", path_of("Pod", self._namespace), **query)["items"]
        living = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        return pod_state(living[0]) if living else None

    def _obstacle(self, state: PodState | None, elapsed: float) -> str:
        """Return why the pod will not run, in the cluster's own words; "" while it may."""
        if state is None:
            return refusal_of(list_events(self._api, self._namespace, kind="Job"), {_name(self._names)})
        if state.phase == "over":
            return f"it ended at once with exit code {state.exit_code}: {state.why}"
        if state.stuck:
            return state.why
        if elapsed > _MOUNT_SECONDS:
            why = state.why or delay_of(list_events(self._api, self._namespace, kind="Pod"), state.pod)
            # An image on its way may still come.
            if why and not why.startswith(PULLING):
                return why
        return f"not within {self._start_seconds:.0f} s" if elapsed > self._start_seconds else ""
