"""A tuning job of own hosts: read its store, stop it, wait for it, and start its searcher again after a kill."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from herringbone.backends.registry import backend_named
from herringbone.plan.request import JobRequest, refuse_masked
from herringbone.records.home import HOME_VARIABLE, Home
from herringbone.system.detached_process import hand_over, start_detached
from herringbone.system.polling import Pace, Pauses
from herringbone.system.processes import identity, is_alive, may_live, sees
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import TuningLook, describe_tuning, status_of, trial_line
from herringbone.tuner.searcher.runner import search
from herringbone.tuner.searcher.search import no_result_yet
from herringbone.tuner.searcher.trial_jobs import TrialJobs
from herringbone.tuner.store import TrialRecord, TuningState, TuningStore
from herringbone.tuner.strategies.early_stopping import judged
from herringbone.tuner.trials import TrialState
from herringbone_contract.errors import HerringboneError, JobNotFoundError, LaunchError, TuningFailedError

_PACE = Pace(shortest=0.01, longest=0.25, slower=1.2)
# A searcher that dies this often without a new line in the store will not get any further.
_MAX_RESTARTS = 3
# A searcher that is starting does not hold its lock yet.
_START_SECONDS = 10.0
# The program stands above this room: it plans trials.
SEARCHER = (sys.executable, "-m", "herringbone.api.tuning")


class OwnTuning:
    """A tuning job whose trials run on own hosts.

    >>> OwnTuning(TuningStore(home.tuning("digits")), home).trials()[0].objective      # doctest: +SKIP
    0.93

    `request` is what all trials share with its secrets, which only the client that called `fit` has. Without it, the
    stored one serves, unless secrets are masked in it.
    """

    def __init__(self, store: TuningStore, home: Home, request: JobRequest | None = None) -> None:
        self.name = store.name
        self._store = store
        self._home = home
        self._request = request
        # The searcher that this process started: it may not hold the lock yet.
        self._searcher: str | None = None
        # Restarts since the last new line in the store, and the number of its lines.
        self._restarts, self._progress = 0, -1

    def __repr__(self) -> str:
        return f"OwnTuning({self.name!r})"

    def state(self) -> TuningState:
        """Return the status, and the reason of a failed one."""
        return self._store.state()

    def definition(self) -> TuningDefinition:
        """See `Tuning.definition`; secrets among the static hyperparameters are masked."""
        return self._store.record().definition

    def trials(self) -> list[TrialRecord]:
        """See `Tuning.trials`; early stopping has been judged."""
        return judged_records(self.definition(), self._store.trials())

    def describe(self) -> dict[str, Any]:
        """See `Tuning.describe`."""
        return describe_tuning(self._store.record(), self.look())

    def look(self) -> TuningLook:
        """Return the search at this moment, with what keeps it from going on."""
        return self.alive(self.read())

    def read(self) -> TuningLook:
        """Return the search as its files have it."""
        # The state first: when it says that the search is over, all trials have been written.
        state, record = self.state(), self._store.record()
        trials, reason = judged_records(record.definition, self._store.trials()), state.reason
        if not state.done:
            # The user need not wait until the search gives up.
            reason = no_result_yet(record.definition, [one.trial() for one in trials])
        return TuningLook(
            definition=record.definition,
            trials=trials,
            status=status_of(state, stopping=self._store.stop_asked),
            backend=record.backend,
            created=record.created,
            ended=state.ended,
            reason=reason,
        )

    def alive(self, look: TuningLook) -> TuningLook:
        """Add to a search what changes no file: that its process is gone, and which of its jobs still run."""
        if look.done or time.time() - look.created < _START_SECONDS or self.is_searched:
            return look
        why = f"no process searches any more; `herringbone tune attach {look.name}` goes on"
        jobs = TrialJobs(self._store, look.definition, look.backend, None, None)
        trials = [record if record.done else _at_rest(record, jobs) for record in look.trials]
        return replace(look, reason=why, searched=False, trials=trials)

    @property
    def is_searched(self) -> bool:
        """True while a searcher runs, here or on another machine of this home."""
        if self._searcher is not None and is_alive(self._searcher):
            return True
        if self._store.is_searched:
            return True
        state = self.state()
        # A file system may have locks that other machines do not see. A container that is gone has no lock, and nobody
        # else can know about its processes.
        if state.searcher is None or state.place is None or not self._store.beats:
            return False
        return _elsewhere(state.searcher, state.place)

    def resume(self) -> bool:
        """Start a searcher if the search is not over and none runs; return whether one was started.

        Raises `InputError` for secrets that are stored masked, and `LaunchError`.
        """
        if self.state().done or self.is_searched:
            return False
        request = self.shared_request()
        if not self._store.stop_asked:
            refuse_masked(self.name, request, searches=True)
        self._searcher = start_searcher(self._store, self._home, request)
        return True

    def shared_request(self) -> JobRequest:
        """Return the request that all trials share: with its secrets where this process has them."""
        return self._store.record().asked if self._request is None else self._request

    def use(self, request: JobRequest) -> None:
        """Search with this shared request, which has the secrets."""
        self._request = request

    def stop(self) -> None:
        """See `Tuning.stop`."""
        if self.state().done:
            return
        self._store.ask_to_stop()
        if not self.is_searched:
            # Nobody else would stop the running trials. No job is started, so no secret is needed.
            search(self._store, None, say=lambda _: None)

    def kill(self) -> None:
        """Kill the running trials of a search that was asked to stop."""
        backend = backend_named(self._store.record().backend)
        for record in self._store.trials():
            if not record.done:
                # A trial that waits for a machine has no job yet, and gets none after the request to stop.
                with contextlib.suppress(JobNotFoundError):
                    backend.kill(record.job)

    def wait(self, say: Callable[[str], None] | None = None, timeout: float | None = None) -> None:
        """See `Tuning.wait`. A searcher that was killed meanwhile is started again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        definition, shown, pauses = self.definition(), set[int](), Pauses(_PACE)
        while True:
            # The state first: when it says that the search is over, all trials have been written.
            state = self.state()
            records = self._store.trials()
            done = [record for record in records if record.done and record.number not in shown]
            for record in done:
                shown.add(record.number)
                if say is not None:
                    say(trial_line(definition, record))
            if state.done:
                if state.status == "Failed":
                    raise TuningFailedError(self.name, state.reason or "its searcher said no reason")
                return
            before, trouble = self._progress, self.keep_searched(records)
            if self._progress != before:
                pauses.reset()
            if trouble:
                raise LaunchError(
                    f"tuning job {self.name}: {trouble}; {self._store.log} has more, and "
                    f"HyperparameterTuner.attach({self.name!r}) tries again"
                )
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"tuning job {self.name} is still {state.status} after {timeout} s; it goes on")
            time.sleep(pauses.next())

    def keep_searched(self, records: Sequence[TrialRecord]) -> str:
        """Start a searcher again if none runs, as `resume` does; `records` are the trials at this moment.

        Returns why not, where one has died too often without a new line in the store.
        """
        progress = len(records) + sum(record.done for record in records)
        if progress != self._progress:
            self._progress, self._restarts = progress, 0
        if self.is_searched or self.state().done:
            return ""
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            words = self._store.last_words() or "its log is empty"
            return f"its searcher died {self._restarts} times without a new trial: {words}"
        self.resume()
        return ""


def _at_rest(record: TrialRecord, jobs: TrialJobs) -> TrialRecord:
    """Return a trial that nobody has looked at lately with the state of its job."""
    try:
        job = jobs.look(record.job)
    except HerringboneError:
        # Its machine does not answer.
        return record
    if job is None or job.lost:
        # It starts again with the search.
        failure = None if job is None else job.failure
        return msgspec.structs.replace(record, status=TrialState.PROPOSED.value, failure=failure)
    if not job.done:
        return record
    return msgspec.structs.replace(record, status=job.status, failure=job.failure, ended=job.ended)


def judged_records(definition: TuningDefinition, records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return records whose objective and status are those that decisions use: early stopping cuts a curve. Pure."""
    results = judged(definition, [record.trial() for record in records])
    return [
        record
        if not record.done
        else msgspec.structs.replace(
            record,
            status=trial.state.value,
            objective=trial.objective,
            curve=trial.curve,
            early_stopped=record.early_stopped or (trial.state is TrialState.STOPPED and record.status != "Stopped"),
        )
        for record, trial in zip(records, results, strict=True)
    ]


def _elsewhere(process: str, where: str) -> bool:
    return sees(where) is None and may_live(process, where)


def start_searcher(
    store: TuningStore, home: Home, request: JobRequest, *, command: Sequence[str] = SEARCHER
) -> str | None:
    """Start a searcher, hand it the request that the trials share, and return its identity.

    The request has the user's secrets, so it travels over standard input. Raises `LaunchError` for a searcher that died
    before it had read the request.
    """
    with store.log.open("ab") as log:
        searcher = start_detached(
            [*command, store.name],
            log=log,
            # Not the tuning job's: its folder `code` would take the place of Python's module of that name.
            folder=home.path,
            # A home that was given relative to the user's folder would be another one in the searcher's.
            environment={HOME_VARIABLE: str(home.path)},
        )
    name = identity(searcher.pid)
    try:
        hand_over(searcher, {"request": request.to_send()})
    except BrokenPipeError:
        searcher.wait()
        raise LaunchError(f"the searcher of tuning job {store.name} did not start: {store.last_words()}") from None
    # It outlives this Python on purpose, which Popen would report as a leak; `is_alive` reaps it.
    searcher.returncode = 0
    return name
