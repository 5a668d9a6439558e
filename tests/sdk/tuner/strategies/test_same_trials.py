"""A seed decides all trials: the order of ends, kills, busy machines and crashes in between change nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.tuner.simulation import EPOCHS, bowl, proposals_of, run, search_of

from herringbone.tuner.configs import TuningJobCompletionCriteriaConfig
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import CategoricalParameter
from herringbone.tuner.strategies.choose import strategy_for
from herringbone.tuner.strategies.early_stopping import judged
from herringbone.tuner.trials import Trial, TrialState

GRID = {"lr": CategoricalParameter([0.1, 0.01, 0.001]), "momentum": CategoricalParameter([0.5, 0.9, 0.99])}


def grid_bowl(values, epoch):
    return bowl({name: float(value) for name, value in values.items()}, epoch)


def cases():
    stop = {"early_stopping_type": "Auto"}
    patience = {"completion": TuningJobCompletionCriteriaConfig(max_number_of_training_jobs_not_improving=4)}
    target = {"completion": TuningJobCompletionCriteriaConfig(target_objective_metric_value=-0.5)}
    for strategy in ("Random", "Hyperband"):
        yield search_of(strategy), bowl
    yield search_of("Random", **stop), bowl
    yield search_of("Random", **patience), bowl
    yield search_of("Hyperband", max_jobs=30, **target), bowl
    for more in ({}, stop, patience):
        yield search_of("Grid", ranges=GRID, max_jobs=None, **more), grid_bowl


def bayesian_cases():
    yield search_of("Bayesian"), bowl
    yield search_of("Bayesian", early_stopping_type="Auto"), bowl


def assert_same_in_any_order(definition, objective, orders, *, fails=()):
    expected = run(definition, objective, fails=fails)
    assert len(expected) > 5
    for order in orders:
        trials = run(definition, objective, order=order, fails=fails, fewer=order % 2 == 1)
        assert proposals_of(trials) == proposals_of(expected)
        assert [trial.objective for trial in trials] == [trial.objective for trial in expected]


@pytest.mark.parametrize(("definition", "objective"), list(cases()))
def test_any_order_of_ends(definition, objective):
    assert_same_in_any_order(definition, objective, range(1, 11))


@pytest.mark.parametrize(("definition", "objective"), list(bayesian_cases()))
def test_any_order_of_ends_with_a_model(definition, objective):
    pytest.importorskip("optuna")
    assert_same_in_any_order(definition, objective, range(1, 5))


@pytest.mark.parametrize("strategy", ["Random", "Hyperband"])
def test_crashed_trials(strategy):
    assert_same_in_any_order(search_of(strategy), bowl, range(1, 5), fails=(0, 3, 4, 9))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 40), st.integers(0, 9))
def test_hyperband_for_any_seed_width_and_length(seed, width, length, order):
    definition = search_of("Hyperband", seed=seed, max_parallel_jobs=width, max_jobs=length)
    expected = run(definition)
    assert proposals_of(run(definition, order=order, fewer=True)) == proposals_of(expected)
    # One configuration trains for all epochs, however few there are.
    assert max(trial.proposal.resource for trial in expected) == EPOCHS
    assert sum(trial.proposal.resumes is None for trial in expected) == length


def test_another_seed_gives_other_trials():
    assert proposals_of(run(search_of("Random", seed=1))) != proposals_of(run(search_of("Random", seed=2)))


def test_the_order_of_names_in_a_file_changes_nothing():
    definition = search_of("Random")
    turned = TuningDefinition(
        **{
            **{name: getattr(definition, name) for name in TuningDefinition.__struct_fields__},
            "ranges": dict(reversed(definition.ranges.items())),
        }
    )
    assert proposals_of(run(turned)) == proposals_of(run(definition))


@pytest.mark.parametrize("strategy", ["Hyperband", "Bayesian"])
def test_a_search_goes_on_where_it_was_cut_off(strategy):
    """A new process has the trials and nothing else, at any moment of the search."""
    if strategy == "Bayesian":
        pytest.importorskip("optuna")
    definition = search_of(strategy)
    whole = run(definition)
    for count in range(len(whole)):
        known = whole[:count]
        (proposal,) = strategy_for(definition).propose(judged(definition, known), 1)
        assert proposal == whole[count].proposal


@pytest.mark.parametrize("strategy", ["Random", "Hyperband", "Bayesian"])
def test_a_trial_uses_no_result_too_early(strategy):
    """With P parallel jobs, the first P + 1 of equal length are chosen with the result of job 0 alone."""
    if strategy == "Bayesian":
        pytest.importorskip("optuna")
    definition = search_of(strategy, completion=TuningJobCompletionCriteriaConfig(target_objective_metric_value=0.0))
    chooser = strategy_for(definition)
    trials = [Trial(proposal, state=TrialState.IN_PROGRESS) for proposal in chooser.propose([], 9)]
    assert len(trials) == 4
    for number in (1, 2, 3):
        trials[number] = Trial(trials[number].proposal, state=TrialState.COMPLETED, curve=(-1.0,))
        assert chooser.propose(judged(definition, trials), 9) == []
    trials[0] = Trial(trials[0].proposal, state=TrialState.COMPLETED, curve=(-1.0,))
    assert len(chooser.propose(judged(definition, trials), 9)) == 4


@pytest.mark.parametrize("strategy", ["Hyperband", "Bayesian"])
def test_other_trials_than_those_of_the_last_call(strategy):
    """A strategy remembers its last call to save time; what it remembers must never show."""
    if strategy == "Bayesian":
        pytest.importorskip("optuna")
    definition = search_of(strategy)
    chooser = strategy_for(definition)
    for objective in (bowl, lambda values, epoch: -bowl(values, epoch), bowl):
        whole = run(definition, objective)
        for count in (len(whole) - 1, 3, 8, 8, 0):
            assert chooser.propose(whole[:count], 1) == [whole[count].proposal]


def test_independent_trials_wait_for_nothing():
    definition = search_of("Random")
    trials = [Trial(proposal, state=TrialState.IN_PROGRESS) for proposal in strategy_for(definition).propose([], 9)]
    assert len(trials) == 9
    assert len(strategy_for(definition).propose(trials, 9)) == 3
