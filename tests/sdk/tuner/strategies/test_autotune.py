"""Ranges from example values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone.tuner.strategies.autotune import autotuned
from herringbone_contract.errors import OptionError


@pytest.mark.parametrize(
    ("value", "ranges"),
    [
        (0.01, ContinuousParameter(0.001, 0.1, "Logarithmic")),
        (0.2, ContinuousParameter(0.02, 1.0, "Logarithmic")),
        (2.0, ContinuousParameter(0.2, 20.0, "Logarithmic")),
        (64, IntegerParameter(16, 256, "Logarithmic")),
        (1, IntegerParameter(1, 4, "Logarithmic")),
        (True, CategoricalParameter(["True", "False"])),
    ],
)
def test_a_range_around_each_kind_of_value(value, ranges):
    assert autotuned({"x": value}) == ({"x": ranges}, {})


def test_a_share_near_1_is_searched_by_its_distance():
    momentum = autotuned({"momentum": 0.99})[0]["momentum"]
    assert momentum.scaling_type == "ReverseLogarithmic"
    assert momentum.min_value == pytest.approx(0.9)
    assert momentum.max_value == pytest.approx(0.999)


@given(st.one_of(st.floats(1e-6, 1e6), st.integers(1, 10**6), st.booleans()))
def test_the_example_lies_in_its_range(value):
    ranges = autotuned({"x": value})[0]["x"]
    assert ranges.is_valid(str(value) if isinstance(value, bool) else value)


def test_what_stays():
    static = {"lr": 0.1, "epochs": 9, "seed": 3, "optimizer": "adam", "layers": [1, 2], "decay": 0.0, "batch": 8}
    ranges, rest = autotuned(static, ["batch"])
    assert list(ranges) == ["lr"]
    assert rest == {name: value for name, value in static.items() if name != "lr"}


@pytest.mark.parametrize(
    ("static", "keep", "message"),
    [
        ({"lr": 0.1}, ["rate"], "'rate' is none of the estimator's hyperparameters: lr"),
        ({}, ["rate"], "it has none"),
        ({"epochs": 3}, None, "0 of the estimator's hyperparameters"),
    ],
)
def test_what_is_refused(static, keep, message):
    with pytest.raises(OptionError, match=message):
        autotuned(static, keep)
