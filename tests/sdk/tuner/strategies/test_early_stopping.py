"""The median rule of SageMaker: which trial stops, when, and what it counts."""

import math

import pytest
from tests.sdk.tuner.simulation import bowl, run, search_of

from herringbone.tuner.strategies.early_stopping import judged, stops
from herringbone.tuner.trials import Proposal, Trial, TrialState, best

OFF = search_of("Random", max_parallel_jobs=1)
AUTO = search_of("Random", max_parallel_jobs=1, early_stopping_type="Auto")
LOSS = search_of("Random", max_parallel_jobs=1, early_stopping_type="Auto", objective_type="Minimize")


def trials_of(*curves, running=True, state=TrialState.COMPLETED):
    """Return trials with some curves, of which the last one runs."""
    last = len(curves) - 1
    return [
        Trial(
            Proposal(number, {}),
            state=TrialState.IN_PROGRESS if running and number == last else state,
            curve=tuple(curve),
        )
        for number, curve in enumerate(curves)
    ]


@pytest.mark.parametrize(
    ("curve", "stopped"),
    [
        # Running averages of the three: 1, 2, 3 after one report; 2, 3, 4 after two.
        ([1.9], True),
        ([2.0], False),
        ([2.0, 2.9], True),
        ([2.0, 3.0], False),
        ([], False),
        ([math.nan], True),
    ],
)
def test_worse_than_the_median_of_running_averages(curve, stopped):
    trials = trials_of([1, 3], [2, 4], [3, 5], curve)
    assert stops(AUTO, trials) == ([3] if stopped else [])
    assert stops(OFF, trials) == []


def test_a_loss_is_worse_when_it_is_larger():
    curves = [1, 3], [2, 4], [3, 5]
    assert stops(LOSS, trials_of(*curves, [2.1])) == [3]
    assert stops(LOSS, trials_of(*curves, [1.9])) == []


def test_a_previous_trial_that_ended_sooner_counts_with_what_it_has():
    assert stops(AUTO, trials_of([1], [2], [3], [2, 1.9])) == [3]
    assert stops(AUTO, trials_of([1], [2], [3], [2, 2])) == []


def test_two_previous_trials_are_too_few():
    assert stops(AUTO, trials_of([9], [9], [1])) == []


def test_crashed_trials_and_those_without_a_number_do_not_count():
    assert stops(AUTO, trials_of([9], [9], [9], [1], state=TrialState.FAILED)) == []
    assert stops(AUTO, trials_of([math.nan], [9], [9], [1])) == []


def test_only_trials_that_ended_before_this_one_was_chosen_count():
    """With 3 parallel jobs, trial 4 was chosen with the results of 0, 1 and 2 at most."""
    three = search_of("Random", max_parallel_jobs=3, early_stopping_type="Auto")
    curves = [9], [9], [9], [9], [9]
    assert stops(three, trials_of(*curves[:4], [1])) == []
    assert stops(three, trials_of(*curves, [1])) == [5]


@pytest.mark.parametrize("curve", [[2, 1], [2, 1, 7], [2, 1, 7, 99]])
@pytest.mark.parametrize("state", [TrialState.COMPLETED, TrialState.STOPPED])
def test_a_late_stop_changes_no_result(curve, state):
    trials = trials_of([1, 3, 3], [2, 4, 4], [3, 5, 5], curve, running=False, state=state)
    last = judged(AUTO, trials)[3]
    assert (last.objective, last.curve) == (1, (2, 1))
    assert last.state is (state if len(curve) == 2 else TrialState.STOPPED)


def test_a_cut_trial_counts_for_later_ones_as_it_was_cut():
    """Were the 9s of trial 3 to count, the median for trial 4 would be higher."""
    curves = [1, 1], [2, 2], [3, 3], [1, 9]
    assert stops(AUTO, trials_of(*curves, [2, 2])) == []
    assert stops(AUTO, trials_of([1, 1], [2, 2], [3, 3], [9, 9], [2, 2])) == [4]


def test_a_crash_after_bad_reports_is_a_crash():
    trials = trials_of([5], [5], [5], [1, 1], running=False)
    trials[3] = Trial(Proposal(3, {}), state=TrialState.FAILED, curve=(1, 1))
    assert judged(AUTO, trials)[3].state is TrialState.FAILED
    assert judged(AUTO, trials)[3].objective is None


def test_the_objective_is_the_last_report():
    trials = trials_of([1, 9, 3], [1], running=True)
    assert [trial.objective for trial in judged(OFF, trials)] == [3, None]
    assert judged(OFF, [Trial(Proposal(0, {}), state=TrialState.COMPLETED)])[0].objective is None


def test_a_search_trains_less_and_finds_the_same():
    """Of 40 trials, the rule spares at least a third of all epochs and not the best one."""
    settings = {"max_jobs": 40, "max_parallel_jobs": 2}
    whole, cut = (run(search_of("Random", early_stopping_type=kind, **settings)) for kind in ("Off", "Auto"))
    assert best(cut, "Maximize").number == best(whole, "Maximize").number
    epochs = sum(len(trial.curve) for trial in cut)
    assert epochs <= sum(len(trial.curve) for trial in whole) * 2 / 3
    assert bowl(cut[0].proposal.values, 27) == whole[0].objective
