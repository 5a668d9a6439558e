"""Texts and tables that show a search: on the command line, in `top` and on the page. Pure: trials in, texts out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from herringbone.show.cells import shown_number
from herringbone.system.texts import NONE
from herringbone.system.times import shown_span
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.look import TuningSummary, best_of, summary_of
from herringbone.tuner.parameters import AnyRange, CategoricalParameter
from herringbone.tuner.store import TrialRecord
from herringbone.tuner.trials import TrialState

_WORDS = {"InProgress": "running"}
EARLY = "stopped early"


def shown_value(value: Any) -> str:
    """Return a tuned value as a person reads it; a whole number keeps all of its digits.

    >>> shown_value(0.0031622776601683794), shown_value(123456), shown_value("adam")
    ('0.003162', '123456', 'adam')
    """
    return shown_number(value) if isinstance(value, float) else str(value)


def shown_values(values: Mapping[str, Any]) -> str:
    """Return tuned values in one line.

    >>> shown_values({"lr": 0.0031622776601683794, "optimizer": "adam"})
    'lr=0.003162 optimizer=adam'
    """
    return " ".join(f"{name}={shown_value(value)}" for name, value in values.items())


def shown_state(record: TrialRecord) -> str:
    """Return the state of a trial in a word or two."""
    return EARLY if record.early_stopped and record.done else record.status


def counts(summary: TuningSummary) -> list[tuple[str, int]]:
    """Return the number of trials in each state that there is, with the state in a word."""
    return [(_WORDS.get(state, state.lower()), count) for state, count in summary.counts.items()]


def headline(definition: TuningDefinition, records: Sequence[TrialRecord]) -> str:
    """Return the state of a search in one line.

    >>> from herringbone.tuner.definition import TuningDefinition
    >>> headline(TuningDefinition(name="digits", metric="accuracy", ranges={}, max_jobs=20), [])
    '0 of 20 trials'
    """
    summary = summary_of(definition, records)
    parts = [f"{summary.over} of {summary.limit} trials"]
    if summary.continued:
        parts.append(f"{summary.continued} continued")
    parts += [f"{count} {word}" for word, count in counts(summary) if word != "completed"]
    if (winner := summary.best) is not None:
        parts.append(f"best {definition.metric} {shown_number(winner.objective)} ({winner.job})")
    return ", ".join(parts)


def trial_table(
    definition: TuningDefinition, records: Sequence[TrialRecord], *, now: float, by_result: bool = False
) -> list[tuple[str, ...]]:
    """Return a table of the trials, titles first: in the order of their numbers, or the best first."""
    winner = best_of(definition, records)
    with_resource = any(record.resource is not None for record in records)
    shown = sorted(records, key=lambda record: _rank(definition, record)) if by_result else list(records)
    head = ("TRIAL", "STATE", definition.metric.upper(), *definition.ranges)
    head += ((definition.resource_name or "resource").upper(),) if with_resource else ()
    rows = [
        (
            record.job,
            shown_state(record),
            f"{shown_number(record.objective)}{' *' if winner is not None and record.number == winner.number else ''}",
            *(shown_value(record.values.get(name, NONE)) for name in definition.ranges),
            *((str(record.resource or NONE),) if with_resource else ()),
            NONE
            if record.status == TrialState.PROPOSED.value
            else shown_span((record.ended or now) - (record.started or record.proposed)),
            (record.failure or "").partition("\n")[0],
        )
        for record in shown
    ]
    table = [(*head, "TIME", "WHY"), *rows]
    # Most searches have no failure: no column for it then.
    return table if any(row[-1] for row in rows) else [row[:-1] for row in table]


def _rank(definition: TuningDefinition, record: TrialRecord) -> tuple[float, int]:
    value = record.objective
    if value is None or math.isnan(value):
        return math.inf, record.number
    return (-value if definition.objective_type == "Maximize" else value), record.number


def definition_rows(definition: TuningDefinition) -> list[tuple[str, str]]:
    """Return the settings of a search as labels and texts, with the names of the tuner's arguments.

    >>> from herringbone.tuner.definition import TuningDefinition
    >>> definition_rows(TuningDefinition(name="a", metric="loss", ranges={}, objective_type="Minimize"))[0]
    ('objective', 'Minimize loss')
    """
    rows: list[tuple[str, Any]] = [
        ("objective", f"{definition.objective_type} {definition.metric}"),
        ("strategy", definition.strategy),
        *((f"range of {name}", _range_text(values)) for name, values in definition.ranges.items()),
        ("max_jobs", definition.job_limit),
        ("max_parallel_jobs", definition.max_parallel_jobs),
        ("max_runtime_in_seconds", definition.max_runtime_in_seconds),
        ("epochs of Hyperband", _resource_text(definition)),
        ("early_stopping_type", definition.early_stopping_type),
        ("random_seed", definition.seed),
        ("warm start from", ", ".join(definition.parents) or None),
        *((f"hyperparameter {name}", value) for name, value in definition.static.items()),
    ]
    return [(label, str(value)) for label, value in rows if value is not None]


def _resource_text(definition: TuningDefinition) -> str | None:
    if definition.resource_name is None:
        return None
    least, most = definition.resources
    return f"{least} to {most}, as {definition.resource_name}"


def _range_text(values: AnyRange) -> str:
    if isinstance(values, CategoricalParameter):
        return f"one of {', '.join(values.values)}"
    auto = " (Auto)" if values.scaling_type == "Auto" else ""
    return f"{values.min_value:g} to {values.max_value:g}, {values.scale}{auto}"
