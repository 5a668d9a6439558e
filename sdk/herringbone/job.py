"""`TrainingJob`: the handle of a job, the same class for every backend."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from herringbone.backends import backend_named
from herringbone.console import Console
from herringbone.home import find_home
from herringbone.jobs import FAILED, MAX_RUNTIME_EXCEEDED, STOPPED, JobIndex, JobRecord
from herringbone.logs import LogLine, Metric, chosen, find_metrics
from herringbone_spec.errors import JobFailedError
from herringbone_spec.failure import Failure, parse_failure

if TYPE_CHECKING:
    from herringbone.backends.base import Backend, LogSource
    from herringbone.plan import JobPlan

# How often a growing log is looked at: soon after something came, then more rarely, and most rarely after two seconds
# without a line. A look takes 0.15 ms.
_SHORTEST_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.05
_SLOWER = 1.02


class TrainingJob:
    """A job that was submitted, by this Python or by another.

    >>> job = TrainingJob.attach("digits-1")                     # doctest: +SKIP
    >>> for line in job.logs(follow=True, rank=0): print(line.text)   # doctest: +SKIP
    >>> job.wait().status                                        # doctest: +SKIP
    'Completed'

    Nothing is kept here: each attribute is asked of the backend anew.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    @classmethod
    def submit(cls, plan: JobPlan, backend: Backend) -> TrainingJob:
        """Start a planned job."""
        backend.submit(plan)
        return cls(plan.job_name, backend)

    @classmethod
    def attach(cls, name: str) -> TrainingJob:
        """Return the handle of a job that is known on this machine. Raises `JobNotFoundError`."""
        return cls(name, backend_named(JobIndex(find_home().index).get(name).backend))

    @property
    def plan(self) -> JobPlan:
        """What was submitted, with secret-sounding environment values masked."""
        from herringbone.plan import parse_plan

        return parse_plan(self._record().plan_dict)

    @property
    def status(self) -> str:
        """InProgress, Completed, Failed, Stopping or Stopped."""
        return self._record().status

    @property
    def secondary_status(self) -> str:
        """Starting, Training, Uploading, Completed, Failed, Stopped or MaxRuntimeExceeded."""
        return self._record().secondary_status

    @property
    def failure(self) -> Failure | None:
        """What went wrong first; None unless the job failed."""
        return _failure(self._record())

    @property
    def model_data(self) -> str | None:
        """The `file://` address of the packed model; None while there is none."""
        return _address(self._record().model)

    @property
    def started(self) -> datetime | None:
        return _utc(self._record().started)

    @property
    def ended(self) -> datetime | None:
        return _utc(self._record().ended)

    @property
    def duration(self) -> float | None:
        """Seconds of training, so far when it still runs; None before it started."""
        record = self._record()
        return None if record.started is None else (record.ended or time.time()) - record.started

    def logs(self, *, follow: bool = False, rank: int | None = None, host: str | None = None) -> Iterator[LogLine]:
        """Yield the log's lines; with `follow`, wait for more until the job is over and the last line was given."""
        with closing(self._backend.logs(self.name)) as source:
            batches = self._batches(source.read) if follow else iter(source.read, [])
            for lines in batches:
                yield from chosen(lines, rank=rank, host=host)

    def metrics(self) -> list[Metric]:
        """Return what `metric_definitions` find in the log so far."""
        definitions = self.plan.options.metric_definitions
        return find_metrics(self.logs(), definitions) if definitions else []

    def wait(self, timeout: float | None = None, *, logs: bool = False) -> TrainingJob:
        """Return when the job is over, whatever its end; `logs` shows the log meanwhile.

        Raises `TimeoutError` after `timeout` seconds; the job goes on.
        """
        with closing(self._backend.logs(self.name)) as source:
            self._wait(source, Console() if logs else None, timeout)
        return self

    def stop(self, grace: float | None = None) -> None:
        """Ask the job to stop, and return: every rank gets SIGTERM, and SIGKILL after `grace` seconds.

        Nothing happens to a job that is over.
        """
        self._backend.stop(self.name, grace)

    def describe(self) -> dict[str, Any]:
        """Return the job under SageMaker's key names (DescribeTrainingJob's), as plain JSON values."""
        record = self._record()
        plan = record.plan_dict
        options = plan.get("options", {})
        failure = _failure(record)
        described = {
            "TrainingJobName": record.name,
            "TrainingJobStatus": record.status,
            "SecondaryStatus": record.secondary_status,
            "FailureReason": None if failure is None else failure.render(),
            "ModelArtifacts": None if record.model is None else {"S3ModelArtifacts": _address(record.model)},
            "HyperParameters": plan["hyperparameters"],
            "Environment": options.get("environment", {}),
            "InputDataConfig": [_described_channel(channel) for channel in plan["channels"]],
            "ResourceConfig": {
                "InstanceType": plan["hosts"][0]["instance_type"],
                "InstanceCount": len(plan["hosts"]),
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": self.plan.options.max_run},
            "CreationTime": _iso(record.created),
            "TrainingStartTime": _iso(record.started),
            "TrainingEndTime": _iso(record.ended),
            "TrainingTimeInSeconds": None
            if record.started is None or record.ended is None
            else round(self.duration or 0),
            "Tags": options.get("tags", []),
        }
        return {key: value for key, value in described.items() if value is not None}

    def follow(self, console: Console | None = None) -> None:
        """Wait as `fit` does: show the log, stop the job on Ctrl-C, raise `JobFailedError` when it failed."""
        source = None
        try:
            source = self._backend.logs(self.name)
            self._wait(source, console)
        except KeyboardInterrupt:
            self._interrupted(source or self._backend.logs(self.name), console)
            raise
        finally:
            if source is not None:
                source.close()
        record = self._record()
        failure = _failure(record)
        if failure is not None:
            raise JobFailedError(self.name, failure)
        if record.status == STOPPED and console is not None:
            why = "max_run was over" if record.secondary_status == MAX_RUNTIME_EXCEEDED else "it was asked to"
            Console(sys.stderr).say(f"job {self.name} stopped before its end: {why}")

    def _interrupted(self, source: LogSource, console: Console | None) -> None:
        try:
            Console(sys.stderr).say(f"stopping job {self.name}; Ctrl-C again kills it")
            self.stop()
            self._wait(source, console)
        except KeyboardInterrupt:
            self._backend.kill(self.name)

    def _wait(self, source: LogSource, console: Console | None, timeout: float | None = None) -> None:
        # Nobody reads the log where nobody sees it: taking a million lines apart costs seconds.
        for lines in self._batches(source.read if console is not None else _nothing, timeout):
            assert console is not None
            console.show(lines)

    def _batches(self, read: Callable[[], list[LogLine]], timeout: float | None = None) -> Iterator[list[LogLine]]:
        """Yield what comes until the job is over. The state is read before the log, so that no last line is missed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _SHORTEST_POLL_SECONDS
        while True:
            over = self._record().done
            while lines := read():
                pause = _SHORTEST_POLL_SECONDS
                yield lines
            if over:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name} is still {self.status} after {timeout} s; it goes on")
            time.sleep(pause)
            pause = min(pause * _SLOWER, _LONGEST_POLL_SECONDS)

    def _record(self) -> JobRecord:
        return self._backend.describe(self.name)


def attach(training_job_name: str) -> TrainingJob:
    """Return the handle of a job by its name, whoever submitted it. Raises `JobNotFoundError`."""
    return TrainingJob.attach(training_job_name)


def all_jobs() -> list[JobRecord]:
    """Return every job known on this machine, the newest first, each as it is at this moment."""
    records = JobIndex(find_home().index).all()
    return [record if record.done else backend_named(record.backend).describe(record.name) for record in records]


def _nothing() -> list[LogLine]:
    return []


def _failure(record: JobRecord) -> Failure | None:
    return None if record.failure is None or record.status != FAILED else parse_failure(record.failure)


def _address(path: str | None) -> str | None:
    return None if path is None else f"file://{path}"


def _utc(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _iso(seconds: float | None) -> str | None:
    moment = _utc(seconds)
    return None if moment is None else moment.isoformat()


def _described_channel(channel: dict[str, Any]) -> dict[str, Any]:
    source = channel["input"]
    where = {"S3DataType": "S3Prefix", "S3Uri": source["s3_data"]}
    if "distribution" in source:
        where["S3DataDistributionType"] = source["distribution"]
    return {"ChannelName": channel["name"], "DataSource": {"S3DataSource": where}}
