"""`TrainingJob`: the handle of a job, the same class for every backend."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.registry import backend_named
from herringbone.jobs.console import Console
from herringbone.jobs.events import News, why_stopped
from herringbone.jobs.home import find_home
from herringbone.jobs.index import FAILED, JobIndex, JobRecord
from herringbone.jobs.interrupt import OnInterrupt, check_choice, stops, ways_back
from herringbone.jobs.logs import LogLine, Metric, chosen, find_metrics
from herringbone.jobs.watch import Watch
from herringbone_contract.errors import JobFailedError, JobNotFoundError, OptionError
from herringbone_contract.failure import Failure, parse_failure

if TYPE_CHECKING:
    from herringbone.backends.base import Backend, LogSource
    from herringbone.planning.plan import JobPlan


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
    def attach(cls, name: str, sagemaker_session: object = None) -> TrainingJob:
        """Return the handle of a job that is known on this machine, or to SageMaker where a region is set.

        `sagemaker_session` is whose credentials ask SageMaker. Raises `JobNotFoundError`.
        """
        return cls(name, _backend_of(name, sagemaker_session))

    @property
    def plan(self) -> JobPlan:
        """What was submitted, with secret-sounding environment values and hyperparameters masked."""
        from herringbone.planning.plan import parse_plan

        return parse_plan(self._record().plan_dict)

    @property
    def status(self) -> str:
        """InProgress, Completed, Failed, Stopping or Stopped."""
        return self._record().status

    @property
    def secondary_status(self) -> str:
        """Starting, Training, Uploading, Completed, Failed, Stopped or MaxRuntimeExceeded; SageMaker knows more."""
        return self._record().secondary_status

    @property
    def failure(self) -> Failure | None:
        """What went wrong first; None unless the job failed."""
        return _failure(self._record())

    @property
    def model_data(self) -> str | None:
        """The address of the packed model, `file://` or `s3://`; None while there is none."""
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

    @property
    def bill(self) -> str | None:
        """What the job has cost, in words; None before its end, and where nobody is billed."""
        return self._backend.bill(self.name)

    def logs(self, *, follow: bool = False, rank: int | None = None, host: str | None = None) -> Iterator[LogLine]:
        """Yield the log's lines; with `follow`, wait for more until the job is over and the last line was given."""
        with closing(self._backend.logs(self.name)) as source:
            if follow:
                batches = self._watch().batches(source)
            elif (record := self._record()).done:
                batches = source.rest(record.ended)
            else:
                batches = iter(source.read, [])
            for lines in batches:
                yield from chosen(lines, rank=rank, host=host)

    def metrics(self) -> list[Metric]:
        """Return what the log's `:::MLLOG` lines tell, and what `metric_definitions` find in it, so far."""
        return find_metrics(self.logs(), self.plan.options.metric_definitions)

    def wait(self, timeout: float | None = None, *, logs: bool = False) -> TrainingJob:
        """Return when the job is over, whatever its end; `logs` shows the log meanwhile.

        Raises `TimeoutError` after `timeout` seconds; the job goes on.
        """
        with closing(self._backend.logs(self.name)) as source:
            self._wait(source, Console() if logs else None, timeout)
        return self

    def download_model(self, into: str | os.PathLike[str]) -> Path:
        """Unpack the model into a new folder, and return the folder.

        >>> job.download_model("model")                              # doctest: +SKIP
        PosixPath('/home/me/model')

        The folder appears whole or not at all. Raises `InputError` while there is no model, or when something is
        there already; `ArchiveError` for an archive that is damaged or reaches outside its folder.
        """
        from herringbone.jobs.model import download_model

        return download_model(lambda folder: self._backend.fetch_model(self.name, folder), Path(into))

    def stop(self, grace: float | None = None) -> None:
        """Ask the job to stop, and return: every rank gets SIGTERM, and SIGKILL after `grace` seconds.

        Nothing happens to a job that is over. SageMaker gives 120 seconds, and another `grace` is refused there.
        """
        self._backend.stop(self.name, grace)

    def describe(self) -> dict[str, Any]:
        """Return the job under SageMaker's key names (DescribeTrainingJob's), as plain JSON values."""
        record = self._record()
        answered: dict[str, Any] = {} if record.description is None else json.loads(record.description)
        # A service's answer is whole; others only add to what is known here.
        if "TrainingJobName" in answered:
            return answered | _tags(record.plan_dict)
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
        }
        return {key: value for key, value in described.items() if value is not None} | answered | _tags(plan)

    def follow(self, console: Console | None = None, *, on_interrupt: OnInterrupt | None = None) -> None:
        """Wait as `fit` does: show states and log, do on Ctrl-C as told, raise `JobFailedError` when it failed.

        `on_interrupt` is stop, detach or ask; None is the backend's own habit: stop here, ask in the cloud.
        """
        check_choice(on_interrupt)
        source = None
        try:
            source = self._backend.logs(self.name)
            self._wait(source, console)
        except KeyboardInterrupt:
            self._interrupted(source, console, on_interrupt or self._backend.on_interrupt)
            raise
        finally:
            if source is not None:
                source.close()
        record = self._record()
        own = Console(sys.stderr)
        if console is not None and (bill := self.bill):
            own.say(bill)
        failure = _failure(record)
        if failure is not None:
            raise JobFailedError(self.name, failure)
        if console is not None and (why := why_stopped(record)):
            own.say(why)

    def _interrupted(self, source: LogSource | None, console: Console | None, choice: OnInterrupt) -> None:
        own = Console(sys.stderr)
        if not stops(choice, self.name):
            own.say(ways_back(self.name))
            return
        try:
            own.say(f"stopping job {self.name}; Ctrl-C again kills it")
            self.stop()
            self._wait(source or self._backend.logs(self.name), console)
        except KeyboardInterrupt:
            self._backend.kill(self.name)
            if (record := self._record()) and not record.done:
                own.say(f"job {self.name} is {record.status}: the service ends it when its grace is over")

    def _wait(self, source: LogSource, console: Console | None, timeout: float | None = None) -> None:
        if console is None:
            # Nobody reads the log where nobody sees it: taking a million lines apart costs seconds.
            for _ in self._watch().batches(None, timeout):
                pass
            return
        news = News()
        own = Console(sys.stderr)

        def look(record: JobRecord) -> None:
            for line in news.of(record, now=time.monotonic()):
                own.say(line)

        for lines in Watch(self._backend, self.name, say=own.say, look=look).batches(source, timeout):
            console.show(lines)

    def _watch(self) -> Watch:
        return Watch(self._backend, self.name, say=Console(sys.stderr).say)

    def _record(self) -> JobRecord:
        return self._backend.describe(self.name)


def attach(training_job_name: str, sagemaker_session: object = None) -> TrainingJob:
    """Return the handle of a job by its name, whoever submitted it. Raises `JobNotFoundError`."""
    return TrainingJob.attach(training_job_name, sagemaker_session)


def _backend_of(name: str, session: object) -> Backend:
    try:
        backend = backend_named(JobIndex(find_home().index).get(name).backend)
    except JobNotFoundError as here:
        from herringbone.backends.sagemaker.backend import SageMakerBackend

        cloud = SageMakerBackend()
        try:
            cloud.find(name, session)
        except JobNotFoundError as there:
            raise JobNotFoundError(f"{here}; {there}") from None
        return cloud
    if session is not None:
        from herringbone.backends.sagemaker.backend import SageMakerBackend

        if not isinstance(backend, SageMakerBackend):
            raise OptionError(f"sagemaker_session: job {name} runs on {backend.name}, which asks no service")
        backend.use(name, session)
    return backend


def _failure(record: JobRecord) -> Failure | None:
    return None if record.failure is None or record.status != FAILED else parse_failure(record.failure)


def _address(model: str | None) -> str | None:
    return model if model is None or "://" in model else f"file://{model}"


def _utc(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _iso(seconds: float | None) -> str | None:
    moment = _utc(seconds)
    return None if moment is None else moment.isoformat()


def _tags(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the tags as a description has them here; the service tells them apart from it."""
    tags = plan.get("options", {}).get("tags") or []
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if isinstance(tags, dict) else tags}


def _described_channel(channel: dict[str, Any]) -> dict[str, Any]:
    source = channel["input"]
    where = {"S3DataType": "S3Prefix", "S3Uri": source["s3_data"]}
    if "distribution" in source:
        where["S3DataDistributionType"] = source["distribution"]
    return {"ChannelName": channel["name"], "DataSource": {"S3DataSource": where}}
