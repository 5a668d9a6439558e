"""Hyperband: its brackets, its promotions, and how little it trains."""

import itertools

import pytest
from tests.sdk.tuner.simulation import EPOCHS, bowl, epochs_of, run, search_of

from herringbone.tuner.configs import HyperbandStrategyConfig
from herringbone.tuner.strategies.hyperband import Bracket, make_brackets
from herringbone.tuner.trials import best


def test_brackets_of_the_paper():
    """Table 1 of the paper for 81 epochs; sizes as its algorithm 1 computes them."""
    assert make_brackets(1, 81) == [
        Bracket(81, (1, 3, 9, 27, 81)),
        Bracket(34, (3, 9, 27, 81)),
        Bracket(15, (9, 27, 81)),
        Bracket(8, (27, 81)),
        Bracket(5, (81,)),
    ]


@pytest.mark.parametrize(
    ("least", "most", "rungs"),
    [(1, 1, (1,)), (5, 14, (14,)), (5, 15, (5, 15)), (2, 20, (2, 6, 20)), (1, 243, (1, 3, 9, 27, 81, 243))],
)
def test_rungs_begin_at_the_least_and_end_at_the_most(least, most, rungs):
    assert make_brackets(least, most)[0].resources == rungs


@pytest.mark.parametrize("width", [1, 4, 27])
def test_a_third_of_each_rung_goes_on(width):
    """At least: who promotes before a rung is complete promotes some that later ones beat. The paper has 81 epochs."""
    trials = run(search_of("Hyperband", max_jobs=27, max_parallel_jobs=width))
    resources = [trial.proposal.resource for trial in trials]
    counts = [resources.count(rung) for rung in (1, 3, 9, 27)]
    assert counts[0] == 27
    assert all(above >= below // 3 for below, above in itertools.pairwise(counts))
    assert 81 <= epochs_of(trials) <= 2 * 81


def test_a_promotion_continues_one_trial_with_its_values():
    trials = run(search_of("Hyperband", max_jobs=27))
    promoted = [trial.proposal for trial in trials if trial.proposal.resumes is not None]
    assert promoted
    for proposal in promoted:
        earlier = trials[proposal.resumes].proposal
        assert proposal.values == earlier.values
        assert proposal.resource == 3 * earlier.resource
    assert len({proposal.resumes for proposal in promoted}) == len(promoted)
    (last,) = [trial for trial in trials if trial.proposal.resource == EPOCHS]
    resources = []
    while last is not None:
        resources.append(last.proposal.resource)
        last = None if last.proposal.resumes is None else trials[last.proposal.resumes]
    assert resources == [27, 9, 3, 1]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("length", [27, 49])
def test_the_best_of_random_search_with_a_third_of_the_epochs(length, seed):
    """Both draw the same configurations from the same seed, so the best one is reached if no rung drops it."""
    by_chance = run(search_of("Random", max_jobs=length, seed=seed))
    trials = run(search_of("Hyperband", max_jobs=length, seed=seed))
    assert {str(trial.proposal.values) for trial in trials} == {str(trial.proposal.values) for trial in by_chance}
    assert best(trials, "Maximize").objective >= best(by_chance, "Maximize").objective
    assert epochs_of(trials) <= epochs_of(by_chance) / 3


def test_crashed_trials_are_not_promoted():
    trials = run(search_of("Hyperband"), fails=range(6))
    assert all(trial.proposal.resumes is None or trial.proposal.resumes >= 6 for trial in trials)
    assert best(trials, "Maximize").proposal.resource == EPOCHS


def test_a_search_whose_trials_all_crash_ends():
    trials = run(search_of("Hyperband"), fails=range(99))
    assert len(trials) == 12


def test_minimizing_promotes_the_smallest():
    maximum = run(search_of("Hyperband"))
    minimum = run(search_of("Hyperband", objective_type="Minimize"), lambda values, epoch: -bowl(values, epoch))
    assert [trial.proposal for trial in minimum] == [trial.proposal for trial in maximum]


def test_the_limits_of_the_config():
    config = HyperbandStrategyConfig(max_resource=20, min_resource=5)
    trials = run(search_of("Hyperband", hyperband=config))
    assert {trial.proposal.resource for trial in trials} == {6, 20}
