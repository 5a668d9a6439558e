"""Show the trials of a tuning job as a table, with the columns of AWS's SDK."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.tuner.fields import parameter_ranges
from herringbone.tuner.look import trial_summary
from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    import os

    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.store import TrialRecord
    from herringbone.tuner.tuning import Tuning

# The columns after the hyperparameters, as AWS's SDK names and orders them, and their values.
COLUMNS: dict[str, Callable[[TrialRecord], Any]] = {
    "TrainingJobName": lambda trial: trial.job,
    "TrainingJobStatus": lambda trial: trial.status,
    "FinalObjectiveValue": lambda trial: trial.objective,
    "TrainingStartTime": lambda trial: _moment(_start_of(trial)),
    "TrainingEndTime": lambda trial: _moment(trial.ended),
    "TrainingElapsedTimeSeconds": lambda trial: None if trial.ended is None else trial.ended - _start_of(trial),
}


class TunerAnalytics:
    """The results of a tuning job as tables; the trials are read once, and again with `force_refresh`.

    >>> tuner.analytics().dataframe().sort_values("FinalObjectiveValue")        # doctest: +SKIP
    >>> tuner.analytics().rows()[0]["FinalObjectiveValue"]                      # doctest: +SKIP
    0.93
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._trials: list[TrialRecord] | None = None

    def __repr__(self) -> str:
        return f"TunerAnalytics({self.name})"

    @property
    def name(self) -> str:
        """The name of the tuning job."""
        return self._tuning.name

    @property
    def tuning_ranges(self) -> dict[str, dict[str, Any]]:
        """The range of each tuned hyperparameter, as CreateHyperParameterTuningJob takes it."""
        lists = parameter_ranges(self._tuning.definition().ranges).values()
        return {entry["Name"]: entry for entries in lists for entry in entries}

    def description(self, force_refresh: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """Return the tuning job's description, always the newest."""
        return self._tuning.describe()

    def clear_cache(self) -> None:
        """Forget the trials, so that the next table reads them again."""
        self._trials = None

    def rows(self, force_refresh: bool = False) -> list[dict[str, Any]]:
        """Return one dict a trial, in the order of their numbers. Needs no pandas.

        The keys are the tuned hyperparameters, and `COLUMNS`. Times are `datetime`s in UTC, None where unknown.
        """
        if force_refresh:
            self.clear_cache()
        if self._trials is None:
            self._trials = self._tuning.trials()
        return trial_rows(self._tuning.definition(), self._trials)

    def dataframe(self, force_refresh: bool = False) -> Any:
        """Return `rows()` as a `pandas.DataFrame`. Raises `UnsupportedError` where pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                "analytics().dataframe() needs pandas; install it with: pip install pandas. Without pandas, "
                "analytics().rows() returns the same as a list of dicts, and export_csv(path) writes it to a file"
            ) from error
        rows = self.rows(force_refresh)
        return pandas.DataFrame(rows, columns=column_names(rows))

    def training_job_summaries(self, force_refresh: bool = False) -> list[dict[str, Any]]:
        """Return the trials as plain dicts under the key names of HyperParameterTrainingJobSummary."""
        self.rows(force_refresh)
        definition = self._tuning.definition()
        return [trial_summary(definition, record) for record in self._trials or ()]

    def export_csv(self, filename: str | os.PathLike[str]) -> None:
        """Write `rows()` to a CSV file, with a header; times in ISO format, empty fields for unknown values."""
        rows = self.rows()
        with Path(filename).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, column_names(rows))
            writer.writeheader()
            writer.writerows({name: _csv_text(value) for name, value in row.items()} for row in rows)


def trial_rows(definition: TuningDefinition, trials: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Return the rows of a table of trials, in their order. Pure.

    >>> trial_rows(definition, trials)[0]["TrainingJobName"]        # doctest: +SKIP
    'digits-001'
    """
    names = list(dict.fromkeys([*definition.ranges, *(name for trial in trials for name in trial.values)]))
    if definition.resource_name is not None and definition.resource_name not in names:
        names.append(definition.resource_name)
    return [_row(definition, trial, names) for trial in trials]


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of rows; of a table without rows, those that do not depend on the search."""
    return list(rows[0]) if rows else list(COLUMNS)


def _row(definition: TuningDefinition, trial: TrialRecord, names: Sequence[str]) -> dict[str, Any]:
    values = dict(trial.values)
    if trial.resource is not None and definition.resource_name is not None:
        values[definition.resource_name] = trial.resource
    return {name: values.get(name) for name in names} | {name: value_of(trial) for name, value_of in COLUMNS.items()}


def _start_of(trial: TrialRecord) -> float:
    # A trial of own hosts starts when it is proposed, unless it waits in line.
    return trial.proposed if trial.started is None else trial.started


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _csv_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
