"""Run a search: carry out what `search.step` decides, until it finishes.

[1] adopt       trials whose jobs a killed searcher did not submit, or which were killed with it, are submitted again
[2] look        jobs that are over become results; every result is on the disk before the next decision
[3] step        decide from what is on the disk
[4] carry out   write a proposal down, then submit its job; stop jobs; write the end
[5] wait        at the backend's pace, then [2]
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from herringbone.plan.request import JobRequest
from herringbone.records.index import FAILED, IN_PROGRESS, STOPPED
from herringbone.system.polling import Pauses
from herringbone.system.processes import identity, place
from herringbone.tuner.definition import TuningDefinition, trial_job_name
from herringbone.tuner.look import trial_line
from herringbone.tuner.searcher.search import Action, Finish, Propose, Stop, Submit, step
from herringbone.tuner.searcher.trial_jobs import JobLook, StartTrial, TrialJobs, objective_of
from herringbone.tuner.store import TrialRecord, TuningState, TuningStore
from herringbone.tuner.strategies.choose import copy_for, strategy_for
from herringbone.tuner.strategies.early_stopping import judged
from herringbone.tuner.trials import Trial
from herringbone_contract.errors import HerringboneError, ServiceError

# Events arrive once a second, so a running trial's curve is read no more often.
_CURVE_SECONDS = 1.0
# Busy machines, a full disk, a service that does not answer: ask again after such a pause.
_TROUBLE_SECONDS = 2.0
# A job that is lost this often has another reason than a kill.
_MAX_LOST = 3


class Waits(msgspec.Struct, frozen=True):
    """The waits of a searcher: seconds after trouble, seconds between two looks at curves, and the wait itself."""

    trouble: float = _TROUBLE_SECONDS
    curve: float = _CURVE_SECONDS
    sleep: Callable[[float], None] = time.sleep


class Searcher:
    """One search, from what the store has to its end.

    >>> with store.locked() as is_mine:                                    # doctest: +SKIP
    ...     Searcher(store, jobs, strategy_for(definition).propose).run()

    `mirror` gets all trials after each change. `say` gets one line for each event.
    """

    def __init__(
        self,
        store: TuningStore,
        jobs: TrialJobs,
        propose: Propose,
        *,
        mirror: Callable[[Sequence[Trial]], None] = lambda _: None,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.time,
        waits: Waits = Waits(),  # noqa: B008 - frozen
    ) -> None:
        self._waits = waits
        self._store = store
        self._jobs = jobs
        self._propose = propose
        self._mirror = mirror
        self._say = say
        self._clock = clock
        record = store.record()
        self._definition: TuningDefinition = record.definition
        self._created = record.created
        self._records = store.trials()
        # Numbers of running trials that were asked to stop, and whether by the rule of early stopping.
        self._stopping: dict[int, bool] = {}
        # Numbers of trials that may have no job, each with the time (of the monotonic clock) to submit it again.
        self._unsubmitted: dict[int, float] = {}
        # By number: jobs that were lost because one of our processes was killed.
        self._lost: Counter[int] = Counter()
        self._curves_read = 0.0

    def run(self) -> TuningState:
        """Search to the end, and return the last state. The caller holds the store's lock."""
        state = TuningState(status=IN_PROGRESS, searcher=identity(os.getpid()), place=place())
        if self._store.state().done:
            return self._store.state()
        self._store.set_state(state)
        self._adopt()
        pauses = Pauses(self._jobs.pace)
        while True:
            self._store.beat()
            changed = self._look()
            actions = step(
                self._definition,
                [record.trial() for record in self._records],
                self._propose,
                stopping=self._stopping,
                ending=self._ending(),
            )
            for action in actions:
                if isinstance(action, Finish):
                    return self._finish(action, state)
                self._carry_out(action)
            if changed or actions:
                self._mirror([record.trial() for record in self._records])
                pauses.reset()
            else:
                self._waits.sleep(pauses.next())

    def _ending(self) -> Finish | None:
        if self._store.stop_asked:
            return Finish(STOPPED, "it was asked to stop")
        limit = self._definition.max_runtime_in_seconds
        if limit is not None and self._clock() - self._created >= limit:
            return Finish(STOPPED, f"max_runtime_in_seconds, {limit} s, is over")
        return None

    def _adopt(self) -> None:
        """Submit again what a killed searcher has written down, and what has no job or one that was lost."""
        self._unsubmitted = {record.number: 0.0 for record in self._records if not record.done}

    def _look(self) -> bool:
        """Write down the results of jobs that are over; return whether anything is new."""
        changed = False
        reads_curves = self._definition.early_stopping_type == "Auto" and (
            time.monotonic() - self._curves_read >= self._waits.curve
        )
        for record in [record for record in self._records if not record.done]:
            try:
                if record.number in self._unsubmitted:
                    changed = self._submit_again(record) or changed
                    continue
                look = self._jobs.look(record.job)
                if look is None or look.done:
                    self._take_end(record, look)
                    changed = True
                elif reads_curves:
                    curve = self._jobs.curve(record.job)
                    changed = changed or curve != record.curve
                    self._replace(msgspec.structs.replace(record, curve=curve))
            except ServiceError as error:
                if not error.transient:
                    raise
        if reads_curves:
            self._curves_read = time.monotonic()
        return changed

    def _take_end(self, record: TrialRecord, look: JobLook | None) -> None:
        if look is None:
            self._end(record, FAILED, (), f"job {record.job} was removed while it ran")
        elif look.lost and self._lost[record.number] < _MAX_LOST:
            # Whoever held the job's place in line, or watched it, was killed: no trial is lost by that.
            self._lost[record.number] += 1
            # A request to stop is lost with the job: `step` asks again, and no job starts then.
            self._stopping.pop(record.number, None)
            self._unsubmitted[record.number] = 0.0
        else:
            self._end(record, look.status, self._jobs.curve(record.job), look.failure)

    def _end(self, record: TrialRecord, status: str, curve: tuple[float, ...], failure: str | None) -> None:
        ended = msgspec.structs.replace(
            record,
            status=status,
            curve=curve,
            objective=objective_of(curve, status),
            failure=failure,
            ended=self._clock(),
            early_stopped=status == STOPPED and self._stopping.get(record.number, False),
        )
        self._store.add_end(ended)
        self._replace(ended)
        self._say(trial_line(self._definition, ended))

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Submit):
            job = trial_job_name(self._store.name, action.proposal.number)
            # The line is on the disk before the job exists.
            record = self._store.add_proposal(action.proposal, job)
            self._records.append(record)
            self._start(record)
        elif isinstance(action, Stop):
            self._stop(self._records[action.number], early=action.early)

    def _stop(self, record: TrialRecord, *, early: bool) -> None:
        try:
            if record.number in self._unsubmitted:
                look = self._jobs.look(record.job)
                if look is None or look.lost:
                    self._end(record, STOPPED, (), None)
                    return
            self._unsubmitted.pop(record.number, None)
            self._stopping[record.number] = early
            self._say(f"trial {record.number + 1}: stopping job {record.job}")
            self._jobs.stop(record.job)
        except ServiceError as error:
            if not error.transient:
                raise
            # Asked again at the next step, which would follow at once.
            self._stopping.pop(record.number, None)
            self._waits.sleep(self._waits.trouble)

    def _submit_again(self, record: TrialRecord) -> bool:
        """Submit a trial that may not have a job, if it is time to; return whether that was possible."""
        if self._unsubmitted[record.number] > time.monotonic():
            return False
        look = self._jobs.look(record.job)
        if look is not None and not look.lost:
            del self._unsubmitted[record.number]
            return True
        # When the search ends, `step` stops this trial, too.
        if self._ending() is not None:
            return False
        if look is not None:
            self._say(f"trial {record.number + 1}: job {record.job} was lost and starts again: {look.failure}")
            self._jobs.forget(record.job)
        return self._start(record)

    def _start(self, record: TrialRecord) -> bool:
        """Submit a trial's job; return False where no machine or service has time for it, and try again later."""
        earlier = None if record.resumes is None else self._records[record.resumes]
        try:
            self._jobs.start(record, earlier)
        except HerringboneError as error:
            if getattr(error, "transient", False):
                if record.number not in self._unsubmitted:
                    self._say(f"trial {record.number + 1}: job {record.job} waits: {error}")
                self._unsubmitted[record.number] = time.monotonic() + self._waits.trouble
                return False
            # As on SageMaker, a training job that cannot be created counts as failed.
            self._end(record, FAILED, (), f"job {record.job} could not be started: {error}")
        else:
            values = ", ".join(f"{name}={value}" for name, value in record.values.items())
            self._say(f"trial {record.number + 1}: job {record.job} started with {values}")
        self._unsubmitted.pop(record.number, None)
        return True

    def _finish(self, finish: Finish, state: TuningState) -> TuningState:
        state = msgspec.structs.replace(state, status=finish.status, reason=finish.reason, ended=self._clock())
        self._store.set_state(state)
        self._say(f"tuning job {self._store.name}: {finish.status}" + (f": {finish.reason}" if finish.reason else ""))
        return state

    def _replace(self, record: TrialRecord) -> None:
        self._records[record.number] = record


def search(
    store: TuningStore, request: JobRequest | None, *, say: Callable[[str], None], submit: StartTrial | None = None
) -> bool:
    """Search to the end, unless another process does; return whether this process did.

    `submit` starts the job of a trial. Without a request, no job can be started: for a search that was asked to stop.
    """
    with store.locked() as is_mine:
        if not is_mine:
            return False
        record = store.record()
        definition = record.definition
        jobs = TrialJobs(store, definition, record.backend, request, submit, say)
        if request is None:
            # No strategy, which may need a package that this process lacks.
            Searcher(store, jobs, lambda trials, free: (), say=say).run()  # noqa: ARG005
            return True
        # An error ends the process and not the search: its words are in the log, and the next searcher goes on.
        Searcher(
            store,
            jobs,
            strategy_for(definition).propose,
            mirror=_Mirror(store, definition, say),
            say=say,
        ).run()
    return True


class _Mirror:
    """Writes the copy for Optuna's dashboard. The search needs no copy, so it goes on without one after an error."""

    def __init__(self, store: TuningStore, definition: TuningDefinition, say: Callable[[str], None]) -> None:
        self._path = store.path / "optuna.journal"
        self._definition = definition
        self._say = say
        self._write: Callable[[Sequence[Trial]], None] | None = None

    def __call__(self, trials: Sequence[Trial]) -> None:
        try:
            if self._write is None:
                self._write = copy_for(self._definition, self._path)
            self._write(judged(self._definition, trials))
        except Exception as error:  # noqa: BLE001 - a full disk, or a file that another release of Optuna wrote
            self._write = lambda _: None
            self._say(f"{self._path.name} is no longer written: {type(error).__name__}: {error}")
