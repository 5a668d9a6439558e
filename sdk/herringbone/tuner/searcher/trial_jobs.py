"""The jobs of trials: start, look at, stop and forget them. The searcher's only way to the backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.lifecycle import WATCHER_DIED
from herringbone.backends.registry import backend_named
from herringbone.backends.removal import remove_job
from herringbone.backends.waiter import COULD_NOT_START
from herringbone.events.metrics import job_metrics
from herringbone.plan.links import link_on_the_way, results_of_job
from herringbone.records.checkpoints import copy_checkpoints, newest_files
from herringbone.records.description import failure_of
from herringbone.records.index import FAILED
from herringbone.tuner.trial_plan import checkpoint_folder, trial_request
from herringbone_contract.errors import HostError, InputError, JobNotFoundError

if TYPE_CHECKING:
    from herringbone.events.series import Series
    from herringbone.plan.request import JobRequest
    from herringbone.records.index import JobRecord
    from herringbone.system.polling import Pace
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.store import TrialRecord, TuningStore


# Longer curves than SageMaker's most epochs say no more about a trial.
MAX_CURVE = 20_000


@dataclass(frozen=True, slots=True)
class JobLook:
    """The state of a trial's job at this moment.

    `failure` says in one line why it failed. `lost`: whoever submitted or watched it was killed, so that its end says
    nothing about the trial. `ended` is in seconds since 1970.
    """

    status: str
    done: bool
    failure: str | None = None
    lost: bool = False
    ended: float | None = None


# Starts the job of a trial by its request, under a name.
StartTrial = Callable[["JobRequest", str], object]


class TrialJobs:
    """Starts, watches and stops the trials of one tuning job on its backend, by the names of their jobs.

    `request` is what all trials share, with its secrets; None for a searcher that only stops the jobs that run.
    """

    def __init__(
        self,
        store: TuningStore,
        definition: TuningDefinition,
        backend: str,
        request: JobRequest | None,
        submit: StartTrial | None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._store = store
        self._definition = definition
        self._backend = backend_named(backend)
        self._request = request
        self._submit = submit
        self._say = say

    @property
    def pace(self) -> Pace:
        """The pauses between two looks at running jobs."""
        return self._backend.pace

    def start(self, record: TrialRecord, earlier: TrialRecord | None) -> None:
        """Submit the job of a trial, which continues the checkpoints of `earlier`. Raises the backend's errors."""
        assert self._request is not None
        assert self._submit is not None
        checkpoints = self._checkpoints(record)
        # An existing folder is the complete copy that a killed searcher made, or has what a lost job added to it.
        if checkpoints is not None and earlier is not None and not Path(checkpoints).exists():
            left = Path(self._checkpoints(earlier) or "")
            # A script that writes no checkpoints trains from the beginning, with the same result.
            if files := newest_files([left] if left.is_dir() else []):
                copy_checkpoints(files, Path(checkpoints), lambda text: self._say(f"job {record.job}: {text}"))
        request = trial_request(
            self._request, self._definition, record.proposal, job=record.job, checkpoints=checkpoints
        )
        self._refuse_links(request, record.job)
        self._submit(request, record.job)

    def _refuse_links(self, request: JobRequest, job: str) -> None:
        """Raise `InputError` for a link in a folder that others write to; an earlier trial may have made it."""
        if (folder := self._store.record().no_links_below) is None:
            return
        options = request.options
        addresses = [channel.input.s3_data for channel in request.channels if channel.file_system is None]
        addresses += filter(None, (options.model_uri, options.checkpoint_s3_uri))
        if options.output_path is not None:
            addresses += results_of_job(options.output_path, job)
        for address in addresses:
            if (link := link_on_the_way(address, folder)) is not None:
                raise InputError(f"{link} is a link; trials read and write no address that leads through one")

    def _checkpoints(self, record: TrialRecord) -> str | None:
        uri = None if self._request is None else self._request.options.checkpoint_s3_uri
        return checkpoint_folder(uri, record.proposal, job=record.job, own=self._store.checkpoints(record.job))

    def look(self, job: str) -> JobLook | None:
        """Return the state of a job; None if there is no job of that name."""
        try:
            record = self._backend.describe(job)
        except JobNotFoundError:
            return None
        failure = failure_of(record)
        return JobLook(
            status=record.status,
            done=record.done,
            failure=None if failure is None else failure.head,
            lost=_was_lost(record),
            ended=record.ended,
        )

    def curve(self, job: str) -> tuple[float, ...]:
        """Return the objective's values so far."""
        record = self._backend.describe(job)
        return curve_of(job_metrics(record, self._backend).series, self._definition.metric)

    def stop(self, job: str) -> None:
        """Ask a job to stop."""
        self._backend.stop(job)

    def forget(self, job: str) -> None:
        """Remove what a job left that was killed."""
        remove_job(job, self._backend, home=self._backend.home)


def _was_lost(record: JobRecord) -> bool:
    """Return whether a job failed for a reason that has nothing to do with it, and that another one may not meet."""
    failure = failure_of(record)
    if failure is None or record.status != FAILED:
        return False
    if failure.message.startswith(WATCHER_DIED):
        return True
    if record.started is not None or failure.host is not None:
        return False
    # Submitted again, a job whose start was refused would be refused again.
    return not failure.message.startswith(COULD_NOT_START) or failure.exception == HostError.__name__


def curve_of(series: Iterable[Series], metric: str) -> tuple[float, ...]:
    """Return the objective's values in the order in which one rank reported them; () if none did.

    >>> curve_of(job.metrics().series, "accuracy")         # doctest: +SKIP
    (0.81, 0.93)

    Several ranks may report the metric. The lowest rank of the first host counts, and not the one that reported last,
    as on SageMaker: the result of a search must not depend on which rank was faster. Of more than `MAX_CURVE` values,
    the first ones and the last one are returned.
    """
    named = [one for one in series if one.name == metric and one.values]
    values = tuple(min(named, key=_order).values) if named else ()
    # The objective is the last value, so a curve that is cut keeps it.
    return values if len(values) <= MAX_CURVE else (*values[: MAX_CURVE - 1], values[-1])


def _order(series: Series) -> tuple[bool, int, int, str, str]:
    # Shorter names first: algo-2 comes before algo-10.
    return series.rank is None, series.rank or 0, len(series.host), series.host, series.source


def objective_of(curve: Sequence[float], status: str) -> float | None:
    """Return the objective of a job that is over: its last value, as on SageMaker; None for a failed job.

    >>> objective_of((0.81, 0.93), "Completed"), objective_of((0.81,), "Failed")
    (0.93, None)
    """
    return curve[-1] if curve and status in ("Completed", "Stopped") else None
