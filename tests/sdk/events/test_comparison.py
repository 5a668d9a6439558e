"""Predicted and measured figures of a job, side by side."""

import pytest

from herringbone.events.comparison import as_members, as_tiles, compare, prediction_of
from herringbone.events.view import JobView
from herringbone_contract.prediction.answer import Memory, Prediction, Range, StepTime

STEP = StepTime(seconds=Range(low=0.1, expected=0.2, high=0.3), compute=0.2, communication=0.0, idle=0.0, data=0.0)
PREDICTED = Prediction(
    hosts="x", count=1, distribution={}, mesh={}, memory=(Memory(states=1 << 30), Memory(states=2 << 30)), step=STEP
)


def view_of(device):
    return JobView().take_all(
        [
            {"kind": "steps", "t": 1.0, "rank": 0, "count": 4, "seconds": [0.9, 0.2, 0.2]},
            {"kind": "steps", "t": 1.0, "rank": 1, "count": 4, "seconds": [0.25, 0.25, 0.25]},
            {"kind": "memory", "t": 2.0, "rank": 0, "peak": 4 << 30, "device": device},
            {"kind": "memory", "t": 2.0, "rank": 1, "peak": 3 << 30, "device": device},
            {"kind": "memory", "t": 2.0, "rank": 2, "peak": "much", "device": device},
        ]
    )


def test_the_slowest_rank_and_the_highest_peak_count():
    assert as_members(compare(PREDICTED, view_of("cuda"))) == {
        "StepSeconds": {"Predicted": 0.2, "Measured": 0.25, "Error": -0.2},
        "PeakMemoryBytes": {"Predicted": 2 << 30, "Measured": 4 << 30, "Error": -0.5},
    }


def test_the_growth_of_a_process_is_no_error_of_a_prediction():
    members = as_members(compare(PREDICTED, view_of("cpu")))
    assert members["PeakMemoryBytes"] == {"Predicted": 2 << 30, "ProcessGrowth": 4 << 30}
    assert as_tiles(compare(PREDICTED, view_of("cpu")))[1] == {
        "name": "growth of a rank",
        "predicted": "2.0 GiB",
        "measured": "4.0 GiB",
    }


def test_a_job_that_told_nothing_shows_what_was_predicted():
    assert as_members(compare(PREDICTED, JobView())) == {
        "StepSeconds": {"Predicted": 0.2},
        "PeakMemoryBytes": {"Predicted": 2 << 30},
    }


@pytest.mark.parametrize("plan", [{}, {"prediction": None}, {"prediction": {"planned": 1}}, {"prediction": "x"}])
def test_a_plan_without_a_readable_prediction_has_none(plan):
    assert prediction_of(plan) is None
