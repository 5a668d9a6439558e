"""One search at one moment, and its summary: what lists, `describe`, `top`, the page and the service show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from herringbone.records.index import COMPLETED, TERMINAL
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.store import TrialRecord
from herringbone.tuner.trials import best

# The order in which states of trials are counted.
_STATES = ("Completed", "InProgress", "Stopping", "Stopped", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningLook:
    """One search at one moment. Times are in seconds since 1970.

    `trials` are judged: early stopping has cut their curves. `reason` says why the search failed, ended early, or does
    not go on.
    """

    definition: TuningDefinition
    trials: Sequence[TrialRecord]
    status: str
    backend: str
    created: float
    ended: float | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def done(self) -> bool:
        return self.status in TERMINAL

    @property
    def changed(self) -> float:
        """The time of the newest change of a trial."""
        return max([self.created, *(trial.ended or trial.proposed for trial in self.trials)])

    def summary(self, *, now: float) -> TuningSummary:
        """Return the figures at a moment.

        >>> definition = TuningDefinition(name="digits", metric="accuracy", ranges={}, max_jobs=4)
        >>> trial = TrialRecord(number=0, job="digits-001", values={}, proposed=0.0, status="Completed", ended=9.0)
        >>> look = TuningLook(definition=definition, trials=[trial], status="InProgress", backend="local", created=0.0)
        >>> summary = look.summary(now=10.0)
        >>> summary.over, summary.limit, summary.fraction, summary.eta
        (1, 4, 0.25, 30.0)
        """
        summary, seconds = summary_of(self.definition, self.trials), max(0.0, (self.ended or now) - self.created)
        if self.done:
            # A search may end before its last trial.
            return replace(summary, seconds=seconds, fraction=1.0 if self.status == COMPLETED else summary.fraction)
        left = max(0, summary.limit - summary.over)
        return replace(summary, seconds=seconds, eta=seconds / summary.over * left if summary.over else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSummary:
    """A search in figures.

    `over` of `limit` configurations have a result, where jobs that continue an earlier trial are not counted again, as
    `max_jobs` does not count them; `continued` counts those. `counts` has the number of trials in each state. `best` is
    the best trial, of equal ones the first. `seconds` is the time so far, and `eta` the time until the end if the
    search goes on as fast; None for what is not known.
    """

    over: int
    limit: int
    fraction: float | None
    continued: int
    counts: Mapping[str, int]
    best: TrialRecord | None
    seconds: float | None = None
    eta: float | None = None


def best_of(definition: TuningDefinition, records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial with the best objective, of equal ones the first; None while none has one.

    >>> best_of(definition, records).job                       # doctest: +SKIP
    'digits-007'
    """
    trial = best([record.trial() for record in records], definition.objective_type)
    return None if trial is None else next(record for record in records if record.number == trial.number)


def summary_of(definition: TuningDefinition, trials: Sequence[TrialRecord]) -> TuningSummary:
    """Return the figures of trials, without those of the time."""
    over, limit = sum(one.done and one.resumes is None for one in trials), definition.job_limit
    found = Counter(one.status for one in trials)
    return TuningSummary(
        over=over,
        limit=limit,
        fraction=min(1.0, over / limit) if limit else None,
        continued=sum(one.resumes is not None for one in trials),
        counts={state: found[state] for state in (*_STATES, *sorted(found.keys() - set(_STATES))) if found[state]},
        best=best_of(definition, trials),
    )
