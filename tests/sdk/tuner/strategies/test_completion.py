"""The reasons to end a search before its number of jobs."""

import math

import pytest
from tests.sdk.tuner.simulation import run, search_of

from herringbone.tuner.configs import TuningJobCompletionCriteriaConfig
from herringbone.tuner.searcher.search import Finish, step
from herringbone.tuner.strategies.completion import completion_reason
from herringbone.tuner.trials import Proposal, Trial, TrialState


def results_of(*objectives):
    return [
        Trial(Proposal(number, {}), state=TrialState.COMPLETED, objective=value)
        for number, value in enumerate(objectives)
    ]


def search(objective_type="Maximize", **criteria):
    completion = TuningJobCompletionCriteriaConfig(**criteria)
    return search_of("Random", objective_type=objective_type, completion=completion)


@pytest.mark.parametrize(
    ("kind", "objectives", "ends"),
    [
        ("Maximize", (0.5, 0.89), False),
        ("Maximize", (0.5, 0.9, 0.1), True),
        ("Minimize", (1.5, 0.91), False),
        ("Minimize", (1.5, 0.9), True),
        ("Maximize", (None, math.nan), False),
        ("Maximize", (), False),
    ],
)
def test_a_target(kind, objectives, ends):
    reason = completion_reason(search(kind, target_objective_metric_value=0.9), results_of(*objectives))
    assert reason == ("accuracy reached 0.9, the target is 0.9" if ends else None)


@pytest.mark.parametrize(
    ("objectives", "ends"),
    [
        ((1, 1, 1), False),
        ((1, 1, 1, 1), True),
        ((1, 0, 0, 2, 0, 0), False),
        ((1, 0, None, math.nan), True),
        ((1, 0, 0, 0, 9), True),
    ],
)
def test_no_improvement(objectives, ends):
    reason = completion_reason(search(max_number_of_training_jobs_not_improving=3), results_of(*objectives))
    assert reason == ("3 trials in a row did not improve accuracy" if ends else None)


def test_without_criteria_a_search_goes_on():
    assert completion_reason(search_of("Random"), results_of(1, 1, 1, 1, 1)) is None


def test_a_search_ends_at_its_target_with_the_trials_that_run():
    """Trial 5 is the first to reach the target; when its result is used, three others have begun."""
    definition = search(target_objective_metric_value=5.0)
    seen: dict[float, int] = {}
    trials = run(definition, lambda values, epoch: float(seen.setdefault(values["lr"], len(seen))))
    first = next(trial.number for trial in trials if trial.objective >= 5)
    assert len(trials) == first + definition.max_parallel_jobs


def test_the_search_says_why_it_ended():
    definition = search(target_objective_metric_value=0.9)
    trials = [
        Trial(Proposal(0, {}), state=TrialState.COMPLETED, curve=(0.5,)),
        Trial(Proposal(1, {}), state=TrialState.COMPLETED, curve=(0.95,)),
    ]
    reason = "accuracy reached 0.95, the target is 0.9"
    assert step(definition, trials, lambda results, free: []) == [Finish("Completed", reason)]
