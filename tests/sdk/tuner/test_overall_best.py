"""The member OverallBestTrainingJob of a description: the best of a search and of its parents."""

import pytest
from tests.sdk.tuner.simulation import search_of

from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial
from herringbone.tuner.look import TuningLook, describe_tuning
from herringbone.tuner.store import TrialRecord, TuningRecord

ASKED = {"arguments": {"instance_type": "local_process"}}

PRIOR = PriorTrial({"lr": 0.1, "momentum": 0.5}, 0.8, "first", "first-004")


def describe(kind, *objectives):
    warm = {} if kind is None else {"warm_start_type": kind, "parents": ("first",), "priors": (PRIOR,)}
    record = TuningRecord(
        definition=search_of("Random", **warm),
        request=ASKED,
        backend="local_process",
        created=0.0,
    )
    trials = [
        TrialRecord(
            number=number, job=f"digits-{number + 1:03d}", values={}, proposed=0.0, status="Completed", objective=value
        )
        for number, value in enumerate(objectives)
    ]
    look = TuningLook(definition=record.definition, trials=trials, status="InProgress", backend="", created=0.0)
    return describe_tuning(record, look)


@pytest.mark.parametrize(("objectives", "name"), [((), "first-004"), ((0.7,), "first-004"), ((0.7, 0.9), "digits-002")])
def test_the_best_of_all_with_identical_data(objectives, name):
    overall = describe(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, *objectives)["OverallBestTrainingJob"]
    assert overall["TrainingJobName"] == name


def test_a_parents_trial():
    overall = describe(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM)["OverallBestTrainingJob"]
    assert overall == {
        "TrainingJobName": "first-004",
        "TuningJobName": "first",
        "TunedHyperParameters": {"lr": "0.1", "momentum": "0.5"},
        "FinalHyperParameterTuningJobObjectiveMetric": {"Type": "Maximize", "MetricName": "accuracy", "Value": 0.8},
        "ObjectiveStatus": "Succeeded",
    }


@pytest.mark.parametrize("kind", [None, WarmStartTypes.TRANSFER_LEARNING])
def test_none_where_objectives_of_parents_mean_nothing(kind):
    assert "OverallBestTrainingJob" not in describe(kind, 0.7)
