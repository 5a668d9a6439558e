"""Bayesian search by Optuna: better than chance, within its ranges, and without a word on the terminal."""

import math
import statistics
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("optuna")

import optuna
from tests.sdk.tuner.simulation import RANGES, proposals_of, run, search_of
from tests.sdk.tuner.test_parameters import RANGES as ANY_RANGE

from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial
from herringbone.tuner.parameters import CategoricalParameter, IntegerParameter
from herringbone.tuner.strategies.bayesian import Bayesian
from herringbone.tuner.strategies.spaces import from_searched, searched_space, to_searched
from herringbone.tuner.trials import best

MIXED = {**RANGES, "layers": IntegerParameter(1, 20), "activation": CategoricalParameter(["relu", "tanh", "gelu"])}


def smooth(values, epoch):
    distance = (math.log10(values["lr"]) + 2.3) ** 2 + ((values["momentum"] - 0.93) * 8) ** 2
    return -distance - ((values["layers"] - 7) / 5) ** 2 - 0.5 * (values["activation"] != "relu")


def test_better_than_random_search_on_a_smooth_function():
    gaps = []
    for seed in range(10):
        chance, model = (
            best(run(search_of(strategy, ranges=MIXED, max_jobs=30, seed=seed), smooth), "Maximize").objective
            for strategy in ("Random", "Bayesian")
        )
        gaps.append(model - chance)
    assert sum(gap > 0 for gap in gaps) >= 7
    assert statistics.median(gaps) > 0.1


def test_minimizing_finds_the_same():
    maximum = run(search_of("Bayesian", ranges=MIXED, max_jobs=15), smooth)
    minimum = run(
        search_of("Bayesian", ranges=MIXED, max_jobs=15, objective_type="Minimize"),
        lambda values, epoch: -smooth(values, epoch),
    )
    assert proposals_of(minimum) == proposals_of(maximum)


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), ANY_RANGE, min_size=1, max_size=5), st.integers(0, 99))
def test_every_proposal_lies_in_its_ranges(ranges, seed):
    definition = search_of("Bayesian", ranges=ranges, seed=seed, max_jobs=8)
    for proposal in proposals_of(run(definition, lambda values, epoch: float(len(str(values))))):
        assert proposal.values.keys() == ranges.keys()
        assert all(ranges[name].is_valid(value) for name, value in proposal.values.items())


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.just("x"), ANY_RANGE, min_size=1), st.floats(0, 1))
def test_values_survive_optunas_space(ranges, unit):
    definition = search_of("Bayesian", ranges=ranges)
    values = {"x": ranges["x"].from_unit(unit)}
    space = searched_space(definition)
    searched = to_searched(definition, values, space)
    assert space["x"]._contains(space["x"].to_internal_repr(searched["x"]))
    back = from_searched(definition, searched)["x"]
    assert back == values["x"] or back == pytest.approx(values["x"], abs=1e-15)


def test_crashed_and_meaningless_trials_teach_it_to_go_elsewhere():
    """All trials with a large learning rate report NaN: 60 % by chance, 80 % for a model that never hears of them."""
    later = []
    for seed in range(3):
        definition = search_of("Bayesian", max_jobs=40, seed=seed)
        trials = run(definition, lambda values, epoch: math.nan if values["lr"] > 1e-3 else values["momentum"])
        assert best(trials, "Maximize").objective > 0.97
        later += [trial.proposal.values["lr"] for trial in trials[20:]]
    assert sum(lr > 1e-3 for lr in later) <= 0.5 * len(later)


def test_results_of_identical_parents_replace_random_trials():
    values = [proposal.values for proposal in proposals_of(run(search_of("Random", max_jobs=30, seed=99), smooth_two))]
    priors = tuple(PriorTrial(value, smooth_two(value, 1), "first") for value in values)
    identical = {"warm_start_type": WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, "parents": ("first",)}
    warm = [
        best(run(search_of("Bayesian", max_jobs=6, seed=seed, priors=priors, **identical), smooth_two), "Maximize")
        for seed in range(5)
    ]
    cold = [best(run(search_of("Bayesian", max_jobs=6, seed=seed), smooth_two), "Maximize") for seed in range(5)]
    gain = statistics.median(trial.objective for trial in warm) - statistics.median(trial.objective for trial in cold)
    assert gain > 0.1


def smooth_two(values, epoch):
    return smooth({**values, "layers": 7, "activation": "relu"}, epoch)


def test_nothing_is_printed_and_the_users_verbosity_stays(capfd):
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        run(search_of("Bayesian"))
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
    finally:
        optuna.logging.set_verbosity(optuna.logging.INFO)
    assert capfd.readouterr() == ("", "")


def test_other_strategies_do_without_optuna():
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from tests.sdk.tuner.simulation import search_of, run\n"
        "print(len(run(search_of('Random'))), len(run(search_of('Hyperband'))) > 12)\n"
        "run(search_of('Bayesian'))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.stdout == "12 True\n"
    assert "UnsupportedError: strategy: Bayesian search needs Optuna: run pip install '.[tune]'" in process.stderr


def test_infinite_results_of_parents_count_as_bad_ones():
    values = {"lr": 0.01, "momentum": 0.9, "layers": 5, "activation": "relu"}
    priors = tuple(
        PriorTrial({**values, "layers": 2 + number}, math.inf if number % 2 else 1.0 - number, "parent", f"p{number}")
        for number in range(12)
    )
    definition = search_of(
        "Bayesian",
        ranges=MIXED,
        max_jobs=12,
        parents=("parent",),
        warm_start_type=WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM,
        priors=priors,
    )
    assert all(math.isfinite(trial.objective) for trial in run(definition, smooth))
    storage = Bayesian(definition)._model._storage
    states = [trial.state for trial in storage.get_all_trials(0)]
    assert states.count(optuna.trial.TrialState.PRUNED) == states.count(optuna.trial.TrialState.COMPLETE) == 6
