"""The next steps of a search, by literals."""

import pytest

from herringbone.events.view import Series
from herringbone.tuner.definition import define
from herringbone.tuner.parameters import ContinuousParameter
from herringbone.tuner.searcher.search import Finish, Stop, Submit, step
from herringbone.tuner.searcher.trial_jobs import MAX_CURVE, curve_of, objective_of
from herringbone.tuner.trials import Proposal, Trial, TrialState

RUNS, DONE, FAILED = TrialState.IN_PROGRESS, TrialState.COMPLETED, TrialState.FAILED


def definition(**settings):
    ranges = {"lr": ContinuousParameter(0, 1)}
    return define(
        {"name": "digits", "metric": "accuracy", "ranges": ranges, "seed": 1, "strategy": "Random", **settings}
    )


def trial(number, state, objective=None):
    curve = () if objective is None else (objective,)
    return Trial(Proposal(number, {"lr": 0.5}), f"digits-{number + 1:03d}", state, objective, curve)


def proposing(count):
    """A strategy that proposes `count` trials in all."""
    return lambda trials, free: [Proposal(n, {"lr": 0.5}) for n in range(len(trials), min(count, len(trials) + free))]


def test_free_places_are_filled():
    asked = definition(max_jobs=9, max_parallel_jobs=3)
    assert step(asked, [], proposing(9)) == [Submit(Proposal(n, {"lr": 0.5})) for n in range(3)]
    assert step(asked, [trial(0, DONE, 0.5), trial(1, RUNS), trial(2, RUNS)], proposing(9)) == [
        Submit(Proposal(3, {"lr": 0.5}))
    ]


def test_a_running_trial_is_waited_for():
    assert step(definition(max_jobs=1), [trial(0, RUNS)], proposing(1)) == []


def test_a_search_with_a_result_completes():
    trials = [trial(0, FAILED), trial(1, DONE, 0.5)]
    assert step(definition(max_jobs=2), trials, proposing(2)) == [Finish("Completed")]


@pytest.mark.parametrize(
    ("trials", "words"),
    [
        (
            [trial(0, FAILED)],
            "no training job succeeded: 1 of 1 failed; the first one: herringbone describe digits-001",
        ),
        ([trial(0, DONE)], "none of 1 training jobs reported the objective metric 'accuracy'"),
        ([], "none of 0 training jobs"),
    ],
)
def test_a_search_without_a_result_fails_and_says_why(trials, words):
    (finish,) = step(definition(max_jobs=1), trials, proposing(0))
    assert finish.status == "Failed"
    assert words in finish.reason


def test_an_ending_search_stops_each_running_trial_once_and_starts_none():
    trials, ending = [trial(0, RUNS), trial(1, DONE, 0.5), trial(2, RUNS)], Finish("Stopped", "asked")
    assert step(definition(max_jobs=9), trials, proposing(9), ending=ending) == [Stop(0), Stop(2)]
    assert step(definition(max_jobs=9), trials, proposing(9), ending=ending, stopping={0: False}) == [Stop(2)]
    over = [trial(0, TrialState.STOPPED), trial(1, DONE, 0.5)]
    assert step(definition(max_jobs=9), over, proposing(9), ending=ending) == [ending]


def test_five_first_trials_without_a_result_end_the_search():
    trials = [trial(n, FAILED) for n in range(5)] + [trial(5, RUNS)]
    asked = definition(max_jobs=50, max_parallel_jobs=2)
    assert step(asked, trials, proposing(50)) == [Stop(5)]
    late = [*trials[:5], trial(5, DONE, 0.5)]
    assert [type(action) for action in step(asked, late, proposing(50))] == [Submit, Submit]


def series(name, values, host="algo-1", rank=0, source="script"):
    one = Series(name, host, rank, source)
    one.add(values, begin=1.0, end=2.0)
    return one


def test_the_lowest_rank_of_the_first_host_reports_the_objective():
    found = [
        series("accuracy", [0.3], rank=None),
        series("accuracy", [0.5, 0.6], host="algo-10"),
        series("accuracy", [0.1, 0.2], host="algo-2"),
        series("accuracy", [0.9], rank=1),
        series("loss", [7.0]),
    ]
    assert curve_of(found, "accuracy") == (0.1, 0.2)
    assert curve_of(found, "f1") == ()


def test_the_objective_is_the_last_value_unless_the_job_failed():
    assert objective_of((0.5, 0.4), "Completed") == 0.4
    assert objective_of((0.5, 0.4), "Stopped") == 0.4
    assert objective_of((0.5,), "Failed") is None
    assert objective_of((), "Completed") is None


def test_a_long_curve_keeps_its_last_value():
    series = Series("loss", "algo-1", 0, "script")
    series.add([1.0] * (MAX_CURVE + 5), begin=1.0, end=2.0)
    series.add([0.25], begin=3.0, end=3.0)
    curve = curve_of([series], "loss")
    assert (len(curve), curve[-1]) == (MAX_CURVE, 0.25)
