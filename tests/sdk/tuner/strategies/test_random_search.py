"""Random and grid search."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.tuner.simulation import RANGES, proposals_of, run, search_of
from tests.sdk.tuner.test_parameters import RANGES as ANY_RANGE

from herringbone.tuner.parameters import CategoricalParameter, IntegerParameter


@pytest.mark.parametrize("strategy", ["Random", "Hyperband"])
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), ANY_RANGE, min_size=1, max_size=5), st.integers(0, 99))
def test_every_proposal_lies_in_its_ranges(strategy, ranges, seed):
    definition = search_of(strategy, ranges=ranges, seed=seed, max_jobs=5)
    for proposal in proposals_of(run(definition, lambda values, epoch: 0.0)):
        assert proposal.values.keys() == ranges.keys()
        assert all(ranges[name].is_valid(value) for name, value in proposal.values.items())


def test_no_configuration_twice_while_there_are_new_ones():
    definition = search_of("Random", ranges={"layers": IntegerParameter(1, 12)}, max_jobs=10)
    drawn = [proposal.values["layers"] for proposal in proposals_of(run(definition, lambda values, epoch: 0.0))]
    assert len(set(drawn)) == 10


def test_a_range_with_fewer_values_than_jobs_does_not_hang():
    definition = search_of("Random", ranges={"layers": IntegerParameter(1, 2)}, max_jobs=10)
    drawn = [proposal.values["layers"] for proposal in proposals_of(run(definition, lambda values, epoch: 0.0))]
    assert set(drawn) == {1, 2}


def test_random_trials_spread_over_the_scale():
    values = [proposal.values["lr"] for proposal in proposals_of(run(search_of("Random", max_jobs=200)))]
    shares = [sum(10**power <= value < 10 ** (power + 1) for value in values) for power in range(-5, 0)]
    assert min(shares) >= 25  # of 40


def test_a_grid_has_every_combination_once():
    ranges = {"a": CategoricalParameter([1, 2]), "b": CategoricalParameter(["x", "y", "z"])}
    definition = search_of("Grid", ranges=ranges, max_jobs=None, seed=0)
    proposals = proposals_of(run(definition, lambda values, epoch: 0.0))
    assert [tuple(proposal.values.values()) for proposal in proposals] == list(itertools.product("12", "xyz"))


def test_a_range_of_one_value():
    definition = search_of("Random", ranges={**RANGES, "fixed": IntegerParameter(3, 3)})
    assert {proposal.values["fixed"] for proposal in proposals_of(run(definition))} == {3}
