"""The jobs of a rehearsal: start them, wait for the moment of a fault, cause it, and resume what has ended.

    submit --> training --> first checkpoint and some steps --> the fault --> over --> resumed, unless it has completed

Each run is a job of the request, and another one where the first has to be resumed. Both have a folder of checkpoints
that no other run has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.access.requests import way_into
from herringbone.backends.kubernetes.claims import is_claim
from herringbone.plan.inputs import local_path
from herringbone.plan.request import JobRequest, changed, with_options
from herringbone.records.description import failure_of
from herringbone.records.index import COMPLETED, FAILED, PENDING, STARTING, STOPPED
from herringbone.rehearsal.faults import Fault, reason
from herringbone.system.polling import Pauses
from herringbone.system.processes import pid_of, sees
from herringbone_contract.constants import DEFAULT_HEARTBEAT_SECONDS, HostVariable
from herringbone_contract.errors import HerringboneError, RequestError, UsageError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend
    from herringbone.records.index import JobRecord
    from herringbone_contract.events.format import Event

# The tag of a job that a rehearsal has started; its value is the rehearsal's name.
TAG = "herringbone:rehearsal"
# A run that takes longer than this many undisturbed ones, and a minute, does not go on by itself.
_TIMES, _LEAST_SECONDS = 5.0, 60.0
_SAVE_SECONDS = 10.0
# Hosts give another one up after three missed heartbeats. A lone host is missed by nobody.
_MISSED, _ALONE_SECONDS = 4.0, 3.0

# A lone host thaws again, and a script may live with a save that failed.
_MAY_GO_ON = ("frozen", "full")

# Starts the job of a request, under a name.
Submit = Callable[[JobRequest, str], object]


@dataclass(frozen=True, slots=True)
class Pulse:
    """The rhythm of an undisturbed run: its seconds, those of a step, and those between two checkpoints."""

    seconds: float = 0.0
    step: float = 0.0
    save: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is over. `jobs` are the names of its jobs, `seconds` its time from the first one's submission on.

    `trouble` says why it did not complete, `not_caused` why there was no fault. `detected` is the time in seconds
    between the fault and its first consequence in the job's states; None where there was none.
    """

    jobs: tuple[str, ...]
    seconds: float = 0.0
    trouble: str = ""
    not_caused: str = ""
    detected: float | None = None


class Runs:
    """Starts the runs of a rehearsal on one backend, one after another; `checkpoints` is their folder or address."""

    def __init__(self, name: str, request: JobRequest, backend: Backend, checkpoints: str, submit: Submit) -> None:
        self._name, self._backend, self._checkpoints, self._submit = name, backend, checkpoints, submit
        self._request = request
        self._running = ""

    def undisturbed(self, label: str) -> Run:
        """Run the job without a fault."""
        job = self._start(label, label, {})
        record = self._over(job, None)
        return Run(jobs=(job,), seconds=_seconds(record, record), trouble=_trouble(record))

    def disturbed(self, label: str, fault: Fault, pulse: Pulse) -> Run:
        """Run the job with a fault, and resume it where it has ended."""
        job = self._start(label, label, {})
        begin, run = self._backend.describe(job), Run(jobs=(job,))
        limit = _LEAST_SECONDS + _TIMES * pulse.seconds
        try:
            caused = self._cause(job, fault, pulse)
            record = self._over(job, limit)
            # A stop is no fault that somebody has to notice.
            run = replace(run, detected=None if fault.kind is None else self._detected(record, caused))
            if record.status == COMPLETED and run.detected is None and fault.kind not in _MAY_GO_ON:
                raise RequestError("the job went on as if nothing had happened, or was over before")
            if record.status in (FAILED, STOPPED):
                run = replace(run, jobs=(job, self._resume(f"{label}-2", label, fault)))
                record = self._over(run.jobs[-1], limit)
        # Another layout may be none of this distribution, or have no machine.
        except (RequestError, UsageError) as error:
            return replace(run, not_caused=str(error))
        finally:
            self.end()
        waits = "" if record.done else f"{record.name} is still {record.status} {limit:.0f} s after the fault"
        return replace(run, seconds=_seconds(begin, record), trouble=waits or _trouble(record))

    def end(self) -> None:
        """End the job that runs now, if one does."""
        if job := self._running:
            with contextlib.suppress(HerringboneError):
                self._backend.kill(job)
                self._over(job, _LEAST_SECONDS)

    def clear(self, label: str) -> None:
        """Remove the checkpoints of a run, as far as they are in a folder of this machine."""
        if (path := local_path(self._checkpoints, base=Path("/"))) is not None:
            shutil.rmtree(path / label, ignore_errors=True)
            # The last one takes the folders above it along.
            with contextlib.suppress(OSError):
                path.rmdir()
                path.parent.rmdir()

    def events(self, *jobs: str) -> list[Event]:
        """Return the events of a run's jobs, which are over."""
        found: list[Event] = []
        for job in jobs:
            with closing(self._backend.events(job)) as source:
                for events in source.rest(self._backend.describe(job).ended):
                    found += events
        return found

    def _start(self, label: str, folder: str, changes: Mapping[str, Any]) -> str:
        job = f"{self._name}-{label}"
        request = with_options(changed(self._request, changes), checkpoint_s3_uri=f"{self._checkpoints}/{folder}")
        self._running = job
        self._submit(request, job)
        return job

    def _resume(self, label: str, folder: str, fault: Fault) -> str:
        refusal: UsageError | None = None
        for changes in fault.resumed(self._request):
            try:
                return self._start(label, folder, changes)
            # Another layout may be none of this distribution, or have no machine.
            except UsageError as error:
                refusal = error
        assert refusal is not None
        raise refusal

    def _cause(self, job: str, fault: Fault, pulse: Pulse) -> float:
        """Cause a fault at its moment, and return its time. Raises `RequestError` where it could not be caused."""
        record = self._until(job, lambda record: record.done or record.secondary_status not in (STARTING, PENDING))
        hosts = [str(host["name"]) for host in record.plan_dict["hosts"] if not host.get("helper")]
        # One step more, and half a one: not while the checkpoint's own step goes on.
        self._strike(job, hosts[0], "wait", 1.5 * pulse.step)
        caused, record = time.time(), self._backend.describe(job)
        if fault.kind is None:
            self._backend.stop(job)
        elif fault.kind == "controller" and record.controller and (record.place is None or sees(record.place)):
            os.kill(pid_of(record.controller), signal.SIGKILL)
        else:
            patience = _patience(fault, len(hosts), pulse)
            try:
                self._strike(job, hosts[-1 if fault.on_last else 0], fault.kind, patience)
            except RequestError:
                # mpirun starts the ranks of hosts on one machine below the first one's supervisor.
                if fault.kind != "rank" or len(hosts) == 1:
                    raise
                self._strike(job, hosts[0], fault.kind, patience)
        # A frozen machine goes on again, and a save was waited for.
        return caused if fault.kind == "frozen" else time.time()

    def _strike(self, job: str, host: str, kind: str, seconds: float) -> None:
        """Run the program of faults on a host in a thread: Ctrl-C has to reach this one, whose end ends the job."""
        _, access = way_into(self._backend, job, host)
        answers: list[str] = []

        def run() -> None:
            try:
                answers.append(reason(access.strike(kind, seconds)))
            except (HerringboneError, OSError) as error:
                answers.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join()
        if any(answers):
            raise RequestError(answers[0])

    def _detected(self, record: JobRecord, caused: float) -> float | None:
        """Return the time from a fault to its first consequence in the job's states; None for a job that went on."""
        events = self.events(record.name)
        times = [event["t"] for event in events if event["kind"] in ("state", "restart")]
        after = [moment - caused for moment in (*times, record.ended or 0.0) if moment >= caused]
        goes_on = record.status == COMPLETED and not any(event["kind"] == "restart" for event in events)
        return None if goes_on else min(after, default=None)

    def _over(self, job: str, limit: float | None) -> JobRecord:
        record = self._until(job, lambda record: record.done, limit)
        if record.done:
            self._running = ""
        return record

    def _until(self, job: str, reached: Callable[[JobRecord], bool], limit: float | None = None) -> JobRecord:
        """Return a job's row once it is as wanted, or as it is after `limit` seconds."""
        pauses, deadline = Pauses(self._backend.pace), None if limit is None else time.monotonic() + limit
        while True:
            record = self._backend.describe(job)
            if reached(record) or (deadline is not None and time.monotonic() > deadline):
                return record
            time.sleep(pauses.next())


def run_request(request: JobRequest, name: str) -> JobRequest:
    """Return what all runs share: results in the jobs' own folders or claim, no tracker, and a tag. Pure.

    >>> from herringbone.plan.request import make_request
    >>> asked = make_request("Estimator", {"entry_point": "a.py", "instance_type": "local", "track": "mlflow:http://h/x"})
    >>> run_request(asked, "a-1").options.track, run_request(asked, "a-1").options.tags
    ((), ({'Key': 'herringbone:rehearsal', 'Value': 'a-1'},))
    """
    given = request.options.tags or ()
    listed = [{"Key": key, "Value": value} for key, value in given.items()] if isinstance(given, dict) else given
    tags = [*listed, {"Key": TAG, "Value": name}]
    own = {"track": None, "notify": None, "tensorboard_output_config": None, "tags": tags}
    if not is_claim(request.options.output_path):
        own["output_path"] = None
    return changed(request, {**own, "environment": {HostVariable.FINGERPRINTS: "on"}})


def _patience(fault: Fault, hosts: int, pulse: Pulse) -> float:
    """Return how long a machine is frozen, or a save is waited for."""
    if fault.kind != "frozen":
        return _SAVE_SECONDS + 3 * pulse.save
    if hosts == 1:
        return _ALONE_SECONDS
    return _MISSED * float(os.environ.get(HostVariable.HEARTBEAT) or DEFAULT_HEARTBEAT_SECONDS)


def _seconds(first: JobRecord, last: JobRecord) -> float:
    return (last.ended or time.time()) - first.created


def _trouble(record: JobRecord) -> str:
    if record.status == COMPLETED:
        return ""
    failure = failure_of(record)
    return f"{record.name} is {record.status}" + ("" if failure is None else f": {failure.head}")
