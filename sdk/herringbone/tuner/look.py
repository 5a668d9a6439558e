"""One search at one moment, its summary, and its description under SageMaker's key names. Pure.

Lists, `describe`, `top`, the page and the service show them. Members that SageMaker has no name for are below
`Herringbone`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from herringbone.plan.request import groups_of
from herringbone.records.index import COMPLETED, FAILED, STOPPED, TERMINAL
from herringbone.show.cells import shown_number
from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial, TuningDefinition
from herringbone.tuner.fields import members_of
from herringbone.tuner.store import TrialRecord, TuningRecord, TuningState
from herringbone.tuner.strategies.warm_start import overall_best
from herringbone.tuner.trials import TrialState, best

# The order in which states of trials are counted.
_STATES = ("Completed", "InProgress", "Stopping", "Stopped", "Failed")
STOPPING = "Stopping"
Members = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningLook:
    """One search at one moment. Times are in seconds since 1970.

    `trials` are judged: early stopping has cut their curves. `reason` says why the search failed, ended early, or does
    not go on. `searched` is False for a search that is not over, and whose process is gone.
    """

    definition: TuningDefinition
    trials: Sequence[TrialRecord]
    status: str
    backend: str
    created: float
    ended: float | None = None
    reason: str | None = None
    searched: bool = True

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
        if not self.searched:
            return replace(summary, seconds=self.changed - self.created)
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


def status_of(state: TuningState, *, stopping: bool) -> str:
    """Return the status that users see: Stopping between the request to stop and the end."""
    return STOPPING if stopping and not state.done else state.status


def describe_tuning(record: TuningRecord, look: TuningLook) -> Members:
    """Return the description, as plain JSON values."""
    definition = look.definition
    members = {
        **search_summary(look),
        **members_of(definition),
        "TrainingJobDefinition": _training(definition, record),
        "Tags": list(record.tags) or None,
        "Herringbone": {"Backend": record.backend, "Seed": definition.seed} | _reason(look),
    }
    return _plain(members)


def search_summary(look: TuningLook) -> Members:
    """Return the members that say how far a search is, as plain JSON values."""
    members = search_members(look, lambda trial: trial_summary(look.definition, trial))
    return _plain({**members, "Herringbone": _reason(look) or None})


def _reason(look: TuningLook) -> Members:
    return {"Reason": look.reason} if look.reason and look.status != FAILED else {}


def search_members(look: TuningLook, trial: Callable[[TrialRecord], Members]) -> Members:
    """Return the members that say how far a search is, with times in seconds since 1970 and None for what is not known.

    `trial` returns a trial as a training job's summary.
    """
    definition, chosen = look.definition, best_of(look.definition, look.trials)
    return {
        "HyperParameterTuningJobName": look.name,
        "HyperParameterTuningJobStatus": look.status,
        "CreationTime": look.created,
        "HyperParameterTuningEndTime": look.ended,
        "LastModifiedTime": look.changed,
        "TrainingJobStatusCounters": job_counters(look.trials),
        "ObjectiveStatusCounters": objective_counters(look.trials),
        "FailureReason": look.reason if look.status == FAILED else None,
        "BestTrainingJob": None if chosen is None else trial(chosen),
        # SageMaker names one of identical data and code.
        "OverallBestTrainingJob": _overall_best(look, trial)
        if definition.warm_start_type is WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM
        else None,
    }


def _overall_best(look: TuningLook, trial: Callable[[TrialRecord], Members]) -> Members | None:
    """Return the best trial of a search and its parents."""
    winner = overall_best(look.definition, [record.trial() for record in look.trials])
    if not isinstance(winner, PriorTrial):
        chosen = best_of(look.definition, look.trials)
        return None if chosen is None else trial(chosen)
    return {
        "TrainingJobName": winner.job,
        "TuningJobName": winner.parent,
        "TunedHyperParameters": {name: str(value) for name, value in winner.values.items()},
        "FinalHyperParameterTuningJobObjectiveMetric": _objective(look.definition, winner.objective),
        "ObjectiveStatus": "Succeeded",
    }


def trial_members(definition: TuningDefinition, record: TrialRecord) -> Members:
    """Return one trial as HyperParameterTrainingJobSummary, with times in seconds since 1970."""
    tuned = {name: str(value) for name, value in record.values.items()}
    if record.resource is not None and definition.resource_name is not None:
        tuned[definition.resource_name] = str(record.resource)
    members = {
        "TrainingJobName": record.job,
        "TrainingJobStatus": record.status,
        "CreationTime": record.proposed,
        "TrainingStartTime": record.started,
        "TrainingEndTime": record.ended,
        "TunedHyperParameters": tuned,
        "FailureReason": record.failure,
        "FinalHyperParameterTuningJobObjectiveMetric": _objective(definition, record.objective),
        "ObjectiveStatus": objective_status(record),
    }
    return {key: value for key, value in members.items() if value is not None}


def trial_summary(definition: TuningDefinition, record: TrialRecord) -> Members:
    """Return the same as plain JSON values, with what SageMaker has no name for."""
    ours = {"Number": record.number, "Resumes": record.resumes, "EarlyStopped": record.early_stopped}
    return _plain({**trial_members(definition, record), "Herringbone": ours})


def _objective(definition: TuningDefinition, value: float | None) -> Members | None:
    # JSON has neither NaN nor infinity, and a trial that diverged has no result.
    if value is None or not math.isfinite(value):
        return None
    return {"Type": definition.objective_type, "MetricName": definition.metric, "Value": value}


def _plain(members: Members) -> Members:
    """Return members with times in ISO format, without those that are None."""
    return {
        key: _iso(value) if key.endswith("Time") and isinstance(value, float) else value
        for key, value in members.items()
        if value is not None
    }


def _training(definition: TuningDefinition, record: TuningRecord) -> dict[str, Any]:
    groups = groups_of(record.asked)
    return {
        "StaticHyperParameters": {name: str(value) for name, value in definition.static.items()},
        "ResourceConfig": {
            "InstanceType": groups[0].instance_type,
            "InstanceCount": sum(group.instance_count for group in groups),
        },
    }


def job_counters(trials: Sequence[TrialRecord]) -> dict[str, int]:
    """Return the member TrainingJobStatusCounters."""
    counts = [trial.status for trial in trials]
    return {
        "Completed": counts.count(COMPLETED),
        "InProgress": sum(not trial.done and trial.status != TrialState.PROPOSED.value for trial in trials),
        "RetryableError": 0,
        "NonRetryableError": counts.count(FAILED),
        "Stopped": counts.count(STOPPED),
    }


def objective_counters(trials: Sequence[TrialRecord]) -> dict[str, int]:
    """Return the member ObjectiveStatusCounters."""
    statuses = [objective_status(trial) for trial in trials]
    return {status: statuses.count(status) for status in ("Succeeded", "Pending", "Failed")}


def objective_status(record: TrialRecord) -> str:
    """Return the member ObjectiveStatus; NaN is no result, as for the strategies."""
    if not record.done:
        return "Pending"
    return "Failed" if record.objective is None or math.isnan(record.objective) else "Succeeded"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def trial_line(definition: TuningDefinition, record: TrialRecord) -> str:
    """Return the line that tells a waiting user how a trial ended. Pure.

    >>> trial_line(definition, record)               # doctest: +SKIP
    'trial 1: job digits-001: Completed, accuracy 0.93 (lr=0.01)'
    """
    values = ", ".join(
        f"{name}={shown_number(value)}" if isinstance(value, float) else f"{name}={value}"
        for name, value in record.values.items()
    )
    if record.resource is not None:
        values += f", {definition.resource_name}={record.resource}"
    result = "" if record.objective is None else f", {definition.metric} {shown_number(record.objective)}"
    if record.objective is None and record.status == COMPLETED:
        result = f" without a value of {definition.metric!r}"
    failure = f": {record.failure}" if record.failure else ""
    return f"trial {record.number + 1}: job {record.job}: {record.status}{result} ({values}){failure}"
