"""A search as JSON values for the browser. Pure: definition, trials and rows of their jobs in, plain values out.

Trials count from 1, as the names of their jobs do. Texts are plain; members that are not known are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone.records.index import JobRecord
from herringbone.show.cells import shown_number
from herringbone.show.thin import rounded, thinned
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import TuningLook
from herringbone.tuner.parameters import AnyRange, CategoricalParameter
from herringbone.tuner.store import TrialRecord
from herringbone.tuner.trials import TrialState
from herringbone.views.tunings.shown import counts, definition_rows, shown_values
from herringbone_contract.masking import printable

_MAX_TEXT = 2_000
# The curves of all trials together, so that the page of a thousand trials stays small.
_MAX_POINTS = 40_000


def tuning_row(tuning: TuningLook, *, now: float) -> dict[str, Any]:
    """Return a search's line in the list."""
    definition, summary = tuning.definition, tuning.summary(now=now)
    winner = summary.best
    return {
        "name": definition.name,
        "backend": tuning.backend,
        "status": tuning.status,
        "state": tuning.status,
        "done": tuning.done,
        "strategy": definition.strategy,
        "metric": _text(definition.metric),
        "maximize": definition.objective_type == "Maximize",
        "over": summary.over,
        "max_jobs": summary.limit,
        "fraction": summary.fraction,
        "eta": summary.eta,
        "counts": counts(summary),
        "continued": summary.continued,
        "best": None if winner is None else winner.number + 1,
        "best_value": None if winner is None else rounded(winner.objective),
        "best_text": shown_number(None if winner is None else winner.objective),
        "best_job": None if winner is None else winner.job,
        "best_values": None if winner is None else _text(shown_values(winner.values)),
        "created": tuning.created,
        "seconds": summary.seconds,
        "why": _text(tuning.reason or ""),
    }


def tuning_data(
    tuning: TuningLook, jobs: Mapping[str, JobRecord], newest: Mapping[str, float | None], *, now: float
) -> dict[str, Any]:
    """Return a search for its page; `jobs` are the rows of its trials' jobs, as far as they are known here.

    `newest` are the last values of the objective metric of jobs that run. `now` is the time of the look, in seconds
    since 1970.
    """
    definition = tuning.definition
    buckets = max(5, min(200, _MAX_POINTS // (3 * max(1, len(tuning.trials)))))
    return {
        **tuning_row(tuning, now=now),
        "ranges": [_range(name, values) for name, values in definition.ranges.items()],
        "resource_name": definition.resource_name,
        "trials": [
            _trial(record, jobs.get(record.job), now, buckets) | {"so_far": rounded(newest.get(record.job))}
            for record in tuning.trials
        ],
        "settings": [(_text(label), _text(value)) for label, value in definition_rows(definition)],
    }


def trial_label(definition: TuningDefinition, record: TrialRecord) -> dict[str, Any]:
    """Return what the line of a job says about the search that it belongs to."""
    return {"tuning": definition.name, "number": record.number + 1, "values": _text(shown_values(record.values))}


def _trial(record: TrialRecord, job: JobRecord | None, now: float, buckets: int) -> dict[str, Any]:
    over, rests = record.done, record.status == TrialState.PROPOSED.value
    # The job's own start, where it is known: a trial may have waited in a queue.
    started = record.started or record.proposed if job is None else job.started
    ended = record.ended if job is None or job.ended is None else job.ended
    places = thinned(record.curve, buckets)
    return {
        "number": record.number + 1,
        "job": record.job,
        "status": record.status,
        "state": record.status if over or rests or job is None else job.secondary_status,
        "over": over,
        "objective": rounded(record.objective),
        "values": {_text(name): _value(value) for name, value in record.values.items()},
        "resource": record.resource,
        "resumes": None if record.resumes is None else record.resumes + 1,
        "curve": [rounded(record.curve[at]) for at in places],
        "at": [at + 1 for at in places],
        "ended": ended if over else None,
        "seconds": None if started is None or rests else max(0.0, ((ended if over else None) or now) - started),
        "stopped_early": record.early_stopped,
        "why": _text((record.failure or "").partition("\n")[0]),
    }


def _value(value: object) -> object:
    return value if isinstance(value, (int, float)) else _text(value)


def _range(name: str, values: AnyRange) -> dict[str, Any]:
    if isinstance(values, CategoricalParameter):
        return {"name": _text(name), "values": [_text(value) for value in values.values]}
    return {"name": _text(name), "low": values.min_value, "high": values.max_value, "scaling": values.scale}


def _text(text: object) -> str:
    return printable(str(text))[:_MAX_TEXT]
