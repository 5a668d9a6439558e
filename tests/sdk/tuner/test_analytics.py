"""Tables of trials, with pandas and without."""

from __future__ import annotations

import csv
import sys
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from herringbone.tuner.analytics import COLUMNS, TunerAnalytics, trial_rows
from herringbone.tuner.configs import HyperbandStrategyConfig
from herringbone.tuner.definition import define
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter
from herringbone.tuner.store import TrialRecord
from herringbone_contract.errors import UnsupportedError

RANGES = {"lr": ContinuousParameter(1e-4, 1e-1), "solver": CategoricalParameter(["sgd", "adam"])}
DEFINITION = define({"name": "digits", "metric": "accuracy", "ranges": RANGES, "max_jobs": 3})
TRIALS = [
    TrialRecord(
        number=0,
        job="digits-001",
        values={"lr": 0.01, "solver": "sgd"},
        proposed=1_000.0,
        status="Completed",
        objective=0.9,
        ended=1_030.0,
    ),
    TrialRecord(
        number=1,
        job="digits-002",
        values={"lr": 0.1, "solver": "adam"},
        proposed=1_000.0,
        started=1_010.0,
        ended=1_015.0,
        status="Failed",
        failure="ValueError: no",
    ),
    TrialRecord(number=2, job="digits-003", values={"lr": 0.05, "solver": "adam"}, proposed=1_040.0),
]


class FakeTuning:
    """A tuning job whose trials tests change."""

    name = "digits"

    def __init__(self, trials):
        self.looks, self._trials = 0, trials

    def definition(self):
        return DEFINITION

    def describe(self):
        return {"HyperParameterTuningJobStatus": "InProgress"}

    def trials(self):
        self.looks += 1
        return list(self._trials)


def test_rows_have_the_columns_of_awss_sdk():
    rows = TunerAnalytics(FakeTuning(TRIALS)).rows()
    assert list(rows[0]) == ["lr", "solver", *COLUMNS]
    assert rows[0] == {
        "lr": 0.01,
        "solver": "sgd",
        "TrainingJobName": "digits-001",
        "TrainingJobStatus": "Completed",
        "FinalObjectiveValue": 0.9,
        "TrainingStartTime": datetime.fromtimestamp(1_000, timezone.utc),
        "TrainingEndTime": datetime.fromtimestamp(1_030, timezone.utc),
        "TrainingElapsedTimeSeconds": 30.0,
    }
    # SageMaker tells when the training began; the search for instances does not count.
    assert rows[1]["TrainingElapsedTimeSeconds"] == 5.0
    assert (rows[2]["TrainingEndTime"], rows[2]["FinalObjectiveValue"]) == (None, None)


def test_trials_are_read_once_until_they_are_refreshed():
    tuning = FakeTuning(TRIALS)
    analytics = TunerAnalytics(tuning)
    analytics.rows(), analytics.rows()
    assert tuning.looks == 1
    analytics.rows(force_refresh=True)
    assert tuning.looks == 2
    analytics.clear_cache()
    analytics.training_job_summaries()
    assert tuning.looks == 3


def test_the_epochs_of_hyperband_are_a_column():
    definition = define(
        {
            "name": "digits",
            "metric": "accuracy",
            "ranges": RANGES,
            "static": {"epochs": 9},
            "strategy": "Hyperband",
            "hyperband": HyperbandStrategyConfig(9, 1),
        }
    )
    trial = TrialRecord(number=0, job="digits-001", values={"lr": 0.01, "solver": "sgd"}, resource=3, proposed=0.0)
    assert list(trial_rows(definition, [trial])[0])[:3] == ["lr", "solver", "epochs"]
    assert trial_rows(definition, [trial])[0]["epochs"] == 3


def test_without_pandas_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match=r"pip install pandas.*analytics\(\)\.rows\(\)"):
        TunerAnalytics(FakeTuning(TRIALS)).dataframe()


def test_a_table_of_no_trials_has_its_columns(monkeypatch):
    frames = []
    pandas = SimpleNamespace(DataFrame=lambda rows, columns: frames.append((rows, columns)))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    TunerAnalytics(FakeTuning([])).dataframe()
    TunerAnalytics(FakeTuning(TRIALS)).dataframe()
    assert frames[0] == ([], list(COLUMNS))
    assert frames[1][1] == ["lr", "solver", *COLUMNS]
    assert len(frames[1][0]) == 3


def test_with_pandas():
    pandas = pytest.importorskip("pandas")
    frame = TunerAnalytics(FakeTuning(TRIALS)).dataframe()
    assert frame.sort_values("FinalObjectiveValue", ascending=False)["TrainingJobName"].iloc[0] == "digits-001"
    assert pandas.isna(frame["TrainingEndTime"][2])


def test_summaries_and_ranges_have_sagemakers_names():
    analytics = TunerAnalytics(FakeTuning(TRIALS))
    first = analytics.training_job_summaries()[0]
    assert first["TrainingJobName"] == "digits-001"
    assert first["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 0.9
    assert analytics.tuning_ranges["lr"] == {
        "Name": "lr",
        "MinValue": "0.0001",
        "MaxValue": "0.1",
        "ScalingType": "Auto",
    }
    assert analytics.description() == {"HyperParameterTuningJobStatus": "InProgress"}


def test_csv(tmp_path):
    TunerAnalytics(FakeTuning(TRIALS)).export_csv(tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["TrainingJobName"] for row in rows] == ["digits-001", "digits-002", "digits-003"]
    assert rows[0]["TrainingStartTime"] == "1970-01-01T00:16:40+00:00"
    assert rows[2]["FinalObjectiveValue"] == ""
