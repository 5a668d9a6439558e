"""`TrainingJob`: the handle of a job, the same class for every backend.

A handle holds a name and a `Backend`, and knows no backend by name; `backends.registry` finds the backend of a job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.registry import backend_of_job
from herringbone.jobs.console import Console
from herringbone.jobs.events import StateEvents, why_stopped
from herringbone.jobs.index import FAILED, PLAN_VERSION, JobRecord
from herringbone.jobs.interrupt import OnInterrupt, check_choice, stops, ways_back
from herringbone.jobs.logs import FileLogs, LogLine, Metric, find_metrics, select_lines
from herringbone.jobs.remedies import remedy
from herringbone.jobs.watch import Watch
from herringbone_contract.errors import InputError, JobFailedError
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure

if TYPE_CHECKING:
    from herringbone.backends.base import Backend, LogSource
    from herringbone.jobs.removal import Removal
    from herringbone.planning.plan import JobPlan


class TrainingJob:
    """A job that was submitted, by this Python or by another.

    >>> job = TrainingJob.attach("digits-1")                     # doctest: +SKIP
    >>> for line in job.logs(follow=True, rank=0): print(line.text)   # doctest: +SKIP
    >>> job.wait().status                                        # doctest: +SKIP
    'Completed'

    The handle stores no state of the job: each attribute asks the backend.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend

    def __repr__(self) -> str:
        return f"TrainingJob({self.name!r})"

    def _repr_html_(self) -> str:
        from herringbone.notebook import job_html

        return job_html(self.describe())

    @classmethod
    def submit(cls, plan: JobPlan, backend: Backend) -> TrainingJob:
        """Start a planned job."""
        backend.submit(plan)
        return cls(plan.job_name, backend)

    @classmethod
    def attach(cls, name: str, sagemaker_session: object = None) -> TrainingJob:
        """Return the handle of a job that this machine knows, or that SageMaker knows if a region is set.

        `sagemaker_session` are the credentials to ask SageMaker with. Raises `JobNotFoundError`.
        """
        return cls(name, backend_of_job(name, sagemaker_session))

    @property
    def plan(self) -> JobPlan:
        """The submitted plan; environment values and hyperparameters that look like secrets are masked."""
        from herringbone.planning.plan import parse_plan

        record = self._record()
        if record.plan_version not in (None, PLAN_VERSION):
            raise InputError(
                f"job {self.name}: its plan has format {record.plan_version}, and this Herringbone reads format "
                f"{PLAN_VERSION}; update Herringbone, or use describe, logs and download, which need no plan"
            )
        return parse_plan(record.plan_dict)

    @property
    def status(self) -> str:
        """InProgress, Completed, Failed, Stopping or Stopped."""
        return self._record().status

    @property
    def secondary_status(self) -> str:
        """Starting, Training, Uploading, Completed, Failed, Stopped, MaxRuntimeExceeded; SageMaker has more."""
        return self._record().secondary_status

    @property
    def failure(self) -> Failure | None:
        """The first failure; None unless the job failed."""
        return _failure(self._record())

    @property
    def model_data(self) -> str | None:
        """The address of the packed model, `file://` or `s3://`; None while there is none."""
        return _address(self._record().model)

    @property
    def hyperparameters(self) -> dict[str, str]:
        """The hyperparameters as SageMaker stores them, encoded as text; those that look like secrets are masked."""
        hyperparameters: dict[str, str] = self._record().plan_dict.get("hyperparameters", {})
        return hyperparameters

    @property
    def started(self) -> datetime | None:
        """The time at which the training began, in UTC; None before it."""
        return _utc(self._record().started)

    @property
    def ended(self) -> datetime | None:
        """The time at which the job was over, in UTC; None before it."""
        return _utc(self._record().ended)

    @property
    def duration(self) -> float | None:
        """Seconds of training, until now while the job runs; None before its start."""
        record = self._record()
        return None if record.started is None else (record.ended or time.time()) - record.started

    @property
    def bill(self) -> str | None:
        """The cost of the job, in words; None before its end, and when nobody is billed."""
        return self._backend.bill(self.name)

    def logs(self, *, follow: bool = False, rank: int | None = None, host: str | None = None) -> Iterator[LogLine]:
        """Yield the log's lines; with `follow`, wait for more until the job is over and its last line is read."""
        # A generator that the caller abandons is closed by Python, and then closes the files as well.
        with closing(self._backend.logs(self.name)) as source:
            if follow:
                batches = self._watch().batches(source)
            elif (record := self._record()).done:
                batches = source.rest(record.ended)
            else:
                batches = iter(source.read, [])
            for lines in batches:
                yield from select_lines(lines, rank=rank, host=host)

    def metrics(self) -> list[Metric]:
        """Return the values of the log's `:::MLLOG` lines, and those that `metric_definitions` match, so far."""
        import msgspec

        from herringbone.estimators.options import MetricDefinition
        from herringbone.jobs.metrics import metrics_in_files

        record = self._record()
        # Of the stored plan only this member is needed, which a plan of another release has as well.
        stored = record.plan_dict.get("options", {}).get("metric_definitions", ())
        definitions = msgspec.convert(stored, tuple[MetricDefinition, ...])
        with closing(self._backend.logs(self.name)) as source:
            if isinstance(source, FileLogs):
                return metrics_in_files(source.paths, definitions, over=record.done)
        return find_metrics(self.logs(), definitions)

    def wait(self, timeout: float | None = None, *, logs: bool = False) -> TrainingJob:
        """Wait until the job is over, however it ends; `logs` shows the log meanwhile.

        Raises `TimeoutError` after `timeout` seconds; the job continues.
        """
        with closing(self._backend.logs(self.name)) as source:
            self._wait(source, Console() if logs else None, timeout)
        return self

    def download_model(self, into: str | os.PathLike[str]) -> Path:
        """Unpack the model into a new folder, and return the folder.

        >>> job.download_model("model")                              # doctest: +SKIP
        PosixPath('/home/me/model')

        The folder appears complete or not at all. Raises `InputError` while there is no model, or when the folder
        exists and is not empty; `ArchiveError` for an archive that is damaged or reaches outside its folder.
        """
        from herringbone.jobs.model import download_model

        return download_model(lambda folder: self._backend.fetch_model(self.name, folder), Path(into))

    def repack(self, say: Callable[[str], None] = print) -> Path:
        """Pack the model of a job that is over and has none, as after a full disk, and return the archive.

        >>> job.repack()                                             # doctest: +SKIP
        PosixPath('/home/me/.herringbone/jobs/digits-1/output/model.tar.gz')

        The state of the job stays. `say` gets the names of files that are left out. Raises `InputError` for a job that
        runs, has its archive, or left no model.
        """
        return self._backend.repack(self.name, say)

    def remove(self, *, keep_model: bool = False) -> Removal:
        """Remove a job that is over: its row, its folder, and its files on the machines of `ssh:`.

        >>> job.remove().size                                        # doctest: +SKIP
        12345678

        With `keep_model`, the row and the packed model of a job that has one stay, so `describe` and `download` still
        work. Files in folders of yours (`output_path`, `checkpoint_s3_uri`) and in AWS always stay. Raises `InputError`
        for a job that runs, and with `keep_model` for one whose model is not packed. For several jobs, see
        `herringbone.jobs.removal.remove_jobs`.
        """
        from herringbone.jobs.removal import remove_job

        return remove_job(self.name, self._backend, keep_model=keep_model)

    def stop(self, grace: float | None = None) -> None:
        """Ask the job to stop, and return: every rank gets SIGTERM, and SIGKILL after `grace` seconds.

        A job that is over does not change. SageMaker always gives 120 seconds and refuses a `grace`.
        """
        self._backend.stop(self.name, grace)

    def describe(self) -> dict[str, Any]:
        """Return the job under the key names of SageMaker's DescribeTrainingJob, as plain JSON values."""
        record = self._record()
        description: dict[str, Any] = {} if record.description is None else json.loads(record.description)
        # SageMaker's answer is complete. Other backends store only members that the row has no column for.
        if "TrainingJobName" in description:
            return description | _tags(record.plan_dict)
        # Member by member, because `self.plan` cannot read every plan of another release.
        plan = record.plan_dict
        options, hosts = plan.get("options", {}), plan.get("hosts", [])
        failure = _failure(record)
        members = {
            "TrainingJobName": record.name,
            "TrainingJobStatus": record.status,
            "SecondaryStatus": record.secondary_status,
            "FailureReason": None if failure is None else failure.render(),
            "ModelArtifacts": None if record.model is None else {"S3ModelArtifacts": _address(record.model)},
            "HyperParameters": plan.get("hyperparameters", {}),
            "Environment": options.get("environment", {}),
            "InputDataConfig": [_described_channel(channel) for channel in plan.get("channels", [])],
            "ResourceConfig": {"InstanceType": hosts[0].get("instance_type"), "InstanceCount": len(hosts)}
            if hosts
            else None,
            "StoppingCondition": {"MaxRuntimeInSeconds": options["max_run"]} if "max_run" in options else None,
            "CreationTime": _iso(record.created),
            "TrainingStartTime": _iso(record.started),
            "TrainingEndTime": _iso(record.ended),
            "TrainingTimeInSeconds": None
            if record.started is None or record.ended is None
            else round(self.duration or 0),
        }
        return {key: value for key, value in members.items() if value is not None} | description | _tags(plan)

    def follow(self, console: Console | None = None, *, on_interrupt: OnInterrupt | None = None) -> None:
        """Wait as `fit` does: show states and log, handle Ctrl-C, raise `JobFailedError` when the job failed.

        `on_interrupt` is stop, detach or ask; None is the backend's default: stop on own hosts, ask on SageMaker.
        """
        check_choice(on_interrupt)
        # Ctrl-C may arrive while the log is opened, so `source` may still be None below.
        source = None
        try:
            source = self._backend.logs(self.name)
            self._wait(source, console)
        except KeyboardInterrupt:
            # The interrupt itself still reaches the caller, whatever happens to the job.
            self._interrupted(source, console, on_interrupt or self._backend.on_interrupt)
            raise
        finally:
            if source is not None:
                source.close()
        record = self._record()
        stderr = Console(sys.stderr)
        if console is not None and (bill := self.bill):
            stderr.say(bill)
        self.raise_failure(log_shown=console is not None)
        if console is not None and (why := why_stopped(record)):
            stderr.say(why)

    def raise_failure(self, *, log_shown: bool = False) -> None:
        """Raise `JobFailedError` if the job failed; the message is short where its log was shown."""
        record = self._record()
        if (failure := _failure(record)) is not None:
            raise JobFailedError(self.name, failure, advice=remedy(failure, record.plan_dict), log_shown=log_shown)

    def _interrupted(self, source: LogSource | None, console: Console | None, choice: OnInterrupt) -> None:
        stderr = Console(sys.stderr)
        if not stops(choice, self.name):
            stderr.say(ways_back(self.name))
            return
        try:
            stderr.say(f"stopping job {self.name}; Ctrl-C again kills it")
            self.stop()
            self._wait(source or self._backend.logs(self.name), console)
        # The user pressed Ctrl-C again during the grace.
        except KeyboardInterrupt:
            self._backend.kill(self.name)
            if (record := self._record()) and not record.done:
                stderr.say(f"job {self.name} is {record.status}: the service ends it when its grace is over")

    def _wait(self, source: LogSource, console: Console | None, timeout: float | None = None) -> None:
        if console is None:
            # Without a console the log is not read at all: parsing a million lines costs seconds.
            for _ in self._watch().batches(None, timeout):
                pass
            return
        events = StateEvents()
        stderr = Console(sys.stderr)

        def look(record: JobRecord) -> None:
            for line in events.of(record, now=time.monotonic()):
                stderr.say(line)

        for lines in Watch(self._backend, self.name, say=stderr.say, look=look).batches(source, timeout):
            console.show(lines)

    def _watch(self) -> Watch:
        return Watch(self._backend, self.name, say=Console(sys.stderr).say)

    def _record(self) -> JobRecord:
        return self._backend.describe(self.name)


def attach(training_job_name: str, sagemaker_session: object = None) -> TrainingJob:
    """Return the handle of a job by its name, whoever submitted it. Raises `JobNotFoundError`."""
    return TrainingJob.attach(training_job_name, sagemaker_session)


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
    """Return the tags, which SageMaker lists in a request of its own, not in the description."""
    tags = plan.get("options", {}).get("tags") or []
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if isinstance(tags, dict) else tags}


def _described_channel(channel: dict[str, Any]) -> dict[str, Any]:
    source = channel["input"]
    data = {"S3DataType": "S3Prefix", "S3Uri": source["s3_data"]}
    if "distribution" in source:
        data["S3DataDistributionType"] = source["distribution"]
    return {"ChannelName": channel["name"], "DataSource": {"S3DataSource": data}}
