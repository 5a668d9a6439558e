"""`TrainingJob`: the handle of a job, the same class for every backend.

A handle holds a name and a `Backend`, and knows no backend by name; `backends.registry` finds the backend of a job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.api.follow import Follower, raise_failure, read_events, read_log
from herringbone.backends.registry import backend_of_job
from herringbone.backends.watch import Watch
from herringbone.records.description import address, failure_of
from herringbone.records.index import PLAN_VERSION, JobIndex, JobRecord
from herringbone.records.logs import LogLine, check_source
from herringbone.show.console import Console
from herringbone.system.interrupt import OnInterrupt, check_choice
from herringbone_contract.errors import InputError, OptionError
from herringbone_contract.failure import Failure

if TYPE_CHECKING:
    from herringbone.access.stacks import Stacks
    from herringbone.backends.removal import Removal
    from herringbone.events.columns import Metrics
    from herringbone.events.kinds import Progress
    from herringbone.events.live import LiveView
    from herringbone.events.view import JobView
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Backend
    from herringbone.records.download import Part
    from herringbone.trackers.exporter import Export
    from herringbone_contract.events.format import Event


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
        from herringbone.views.notebook.progress import job_table

        return job_table(self.describe(), self.live_view)

    @classmethod
    def submit(cls, plan: JobPlan, backend: Backend) -> TrainingJob:
        """Start a planned job."""
        # Imported here, as below: `import herringbone` needs none of it.
        from herringbone.backends.facts import note_commit
        from herringbone.code.commit import CommitQuery

        query = CommitQuery(plan.source)
        try:
            backend.submit(plan)
        except BaseException:
            query.cancel()
            raise
        if not query.is_pointless:
            note_commit(query, JobIndex(backend.home.index), plan.job_name)
        if plan.options.track or plan.options.notify:
            from herringbone.trackers.export import start_exporters

            start_exporters(plan, backend)
        return cls(plan.job_name, backend)

    @classmethod
    def attach(cls, name: str, sagemaker_session: object = None, *, instance_type: str | None = None) -> TrainingJob:
        """Return the handle of a job that this machine knows, or that SageMaker knows if a region is set.

        `sagemaker_session` are the credentials to ask SageMaker with. A job that another machine has submitted to
        Kubernetes is found with its `instance_type`, `k8s:NAMESPACE`. Raises `JobNotFoundError`.
        """
        return cls(name, backend_of_job(name, sagemaker_session, instance_type))

    @property
    def plan(self) -> JobPlan:
        """The submitted plan; environment values and hyperparameters that look like secrets are masked."""
        from herringbone.plan.plan import parse_plan

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
        return failure_of(self._record())

    @property
    def model_data(self) -> str | None:
        """The address of the packed model, `file://` or `s3://`; None while there is none."""
        return address(self._record().model)

    @property
    def output_data(self) -> str | None:
        """The address of the packed output, what the script wrote to SM_OUTPUT_DATA_DIR; None while there is none.

        On SageMaker, this is where S3 has it if the script wrote any.
        """
        return address(self._backend.output_of(self._record()))

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

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        host: str | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        pattern: str | None = None,
        live: bool = False,
    ) -> Iterator[LogLine]:
        """Yield the log's lines; with `follow`, wait for more until the job is over and its last line is read.

        >>> [line.text for line in job.logs(rank=0, pattern="loss", tail=1)]     # doctest: +SKIP
        ['epoch 3 loss 0.5']

        Only lines of the rank and of the host, written at or after `since` (an aware time), in which the regular
        expression `pattern` has a match; of those that exist at the time of the call, only the last `tail`. A progress
        bar is one line, its last; `live` also yields its states meanwhile, whose `line.live` is true. Raises
        `OptionError` for a rank or a host that the job has not.
        """
        if rank is not None or host is not None:
            check_source(self._record().plan_dict, rank, host)
        return read_log(
            self._backend, self.name, follow=follow, tail=tail,
            rank=rank, host=host, since=since, pattern=pattern, live=live,
        )  # fmt: skip

    def metrics(self) -> Metrics:
        """Return the values of all metrics so far, by time, each with its step, rank and source.

        >>> [metric.value for metric in job.metrics() if metric.name == "loss"]     # doctest: +SKIP
        [0.5, 0.25]

        The result is a sequence of `Metric`; its `series` has the same values as columns, one for each metric and rank.
        """
        from herringbone.events.metrics import job_metrics

        return job_metrics(self._record(), self._backend)

    def progress(self) -> Progress | None:
        """Return how far the job is, and the seconds until its end; None when nobody has told.

        >>> job.progress().fraction                                  # doctest: +SKIP
        0.25
        """
        from herringbone.events.live import newest_progress

        return newest_progress(self._backend.events(self.name), self.view)

    def view(self) -> JobView:
        """Return everything that the job's events say so far: progress, metrics, resources, restarts.

        >>> job.view().last("loss")                                  # doctest: +SKIP
        0.25
        """
        record = self._record()
        with closing(self.live_view()) as live:
            return live.rest(record.ended) if record.done else live.read()

    def live_view(self) -> LiveView:
        """Return a view that grows: its `read()` takes what has arrived, and never waits.

        >>> with closing(job.live_view()) as live:                   # doctest: +SKIP
        ...     while not live.read().state == "Completed": time.sleep(1)
        """
        from herringbone.events.live import LiveView

        return LiveView(self._backend.events(self.name))

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Yield the job's events so far, by time; with `follow`, wait for more until the job is over.

        >>> [event["kind"] for event in job.events()]                # doctest: +SKIP
        ['state', 'sample', 'metrics', 'state']

        Their kinds and members are those of `herringbone_contract.events.format`.
        """
        return read_events(self._backend, self.name, follow=follow)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write the job's page into one HTML file of at most 2 MB that needs no server, and return its path.

        >>> job.report("digits.html")                                # doctest: +SKIP
        PosixPath('digits.html')

        The job may still run. Long series are thinned: each peak stays. Raises `InputError` where the file cannot be
        written.
        """
        from herringbone.views.page.report import write_report

        return write_report(self.name, Path(path), self._backend)

    def wait(self, timeout: float | None = None, *, logs: bool = False) -> TrainingJob:
        """Wait until the job is over, however it ends; `logs` shows the log meanwhile.

        Raises `TimeoutError` after `timeout` seconds; the job continues.
        """
        with closing(self._backend.logs(self.name)) as source:
            Follower(self.name, self._backend, Console() if logs else None).wait(source, timeout)
        return self

    def download(self, part: Part, into: str | os.PathLike[str]) -> Path:
        """Bring the model, the output, the checkpoints or the logs into a new folder, and return the folder.

        >>> job.download("output", "plots")                          # doctest: +SKIP
        PosixPath('/home/me/plots')

        `output` is what the script wrote to SM_OUTPUT_DATA_DIR, `checkpoints` what SM_CHECKPOINT_DIR has now. Without
        `checkpoint_s3_uri`, the checkpoints of several hosts have a folder for each host. The new folder appears
        complete or not at all. Raises `InputError` while there is nothing of the part, or when the folder exists and is
        not empty; `ArchiveError` for an archive that is damaged or reaches outside its folder.
        """
        from herringbone.records.download import PARTS, download, refuse_removed_log, write_logs

        if part not in PARTS:
            raise OptionError(f"download: a job has no part {part!r}; the parts are {', '.join(PARTS)}")

        def fetch(folder: Path) -> Path:
            if part == "logs":
                refuse_removed_log(self.name)
                hosts = [host["name"] for host in self._record().plan_dict.get("hosts", ())]
                return write_logs(self.logs(), hosts, folder)
            return self._backend.fetch(self.name, part, folder)

        return download(part, fetch, Path(into))

    def download_model(self, into: str | os.PathLike[str]) -> Path:
        """Unpack the model into a new folder, and return the folder; see `download`.

        >>> job.download_model("model")                              # doctest: +SKIP
        PosixPath('/home/me/model')
        """
        return self.download("model", into)

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
        `herringbone.backends.removal.remove_jobs`.
        """
        from herringbone.backends.removal import remove_job

        return remove_job(self.name, self._backend, keep_model=keep_model)

    def stop(self, grace: float | None = None) -> None:
        """Ask the job to stop, and return: ranks that ask `should_stop` save and end, and others get SIGTERM.

        SIGKILL follows after `grace` seconds. A job that is over does not change. SageMaker always gives 120 seconds,
        and refuses a `grace`.
        """
        self._backend.stop(self.name, grace)

    def scale(self, hosts: int) -> int:
        """Ask the running job to go on with another number of hosts, and return the number that it has until then.

        The ranks save and end as at a stop, and another attempt begins at the newest checkpoint. `hosts` is from
        `min_instance_count` to `instance_count`. Raises `RequestError`, or `UnsupportedError` where no job can.
        """
        from herringbone.access.size import ask_for_size

        return ask_for_size(self._backend, self.name, hosts)

    def stacks(self) -> Stacks:
        """Return where each rank of the running job is, the rank that keeps the others waiting first.

        >>> print(job.stacks())                                      # doctest: +SKIP
        stacks: rank 1 (algo-2): it has not entered collective operation 7, in which others wait
        stacks:     train.py:12 in step: lock.acquire()

        Raises `RequestError` when the job is over or does not answer, and `UnsupportedError` on SageMaker.
        """
        from herringbone.access.stacks import ask_for_stacks

        hosts = [str(host["name"]) for host in self._record().plan_dict.get("hosts", ())]
        return ask_for_stacks(self._backend, self.name, hosts)

    def describe(self) -> dict[str, Any]:
        """Return the job under the key names of SageMaker's DescribeTrainingJob, as plain JSON values."""
        from herringbone.trackers.description import describe_job

        return describe_job(self._record(), self._backend)

    def export(self, to: str | Iterable[str] | None = None, *, system: bool = False) -> list[Export]:
        """Send the metrics so far to trackers, and return what was sent to each; a second call sends what is new.

        >>> job.export("mlflow:http://localhost:5000/digits")[0].values      # doctest: +SKIP
        1200

        `to` is written as the option `track`, whose destinations are the default. `system` adds the hosts' CPU, memory
        and GPUs. Raises `OptionError` for a destination that cannot be, `TrackerError` when a tracker refuses.
        """
        from herringbone.trackers.export import export_job

        return export_job(self.name, self.describe, to, system=system)

    def follow(self, console: Console | None = None, *, on_interrupt: OnInterrupt | None = None) -> None:
        """Wait as `fit` does: show states, log and end, handle Ctrl-C, raise `JobFailedError` when the job failed.

        `on_interrupt` is stop, detach or ask; None is the backend's default: stop on own hosts, ask on SageMaker.
        """
        check_choice(on_interrupt)
        Follower(self.name, self._backend, console).follow(on_interrupt)

    def raise_failure(self, *, log_shown: bool = False) -> None:
        """Raise `JobFailedError` if the job failed; the message is short where its log was shown."""
        raise_failure(self._record(), log_shown=log_shown)

    def _watch(self) -> Watch:
        return Watch(self._backend, self.name, say=Console(sys.stderr).say)

    def _record(self) -> JobRecord:
        return self._backend.describe(self.name)


def attach(training_job_name: str, sagemaker_session: object = None) -> TrainingJob:
    """Return the handle of a job by its name, whoever submitted it. Raises `JobNotFoundError`."""
    return TrainingJob.attach(training_job_name, sagemaker_session)


def _utc(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
