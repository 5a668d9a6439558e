"""Ranges: the rules of SageMaker, the scales, and values that never leave them."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone_contract.errors import OptionError

UNIT = st.floats(0.0, 1.0)
ENDS = st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)).map(sorted)
POSITIVE = st.tuples(st.floats(1e-12, 1e9), st.floats(1e-12, 1e9)).map(sorted)
SHARES = st.tuples(st.floats(0.0, 1 - 1e-12), st.floats(0.0, 1 - 1e-12)).map(sorted)
RANGES = st.one_of(
    st.builds(lambda ends, scale: ContinuousParameter(*ends, scale), ENDS, st.sampled_from(["Auto", "Linear"])),
    st.builds(lambda ends: ContinuousParameter(*ends, "Logarithmic"), POSITIVE),
    st.builds(lambda ends: ContinuousParameter(*ends, "ReverseLogarithmic"), SHARES),
    st.builds(
        lambda ends, scale: IntegerParameter(*sorted(ends), scale),
        st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)),
        st.sampled_from(["Auto", "Linear", "Logarithmic"]),
    ),
    st.builds(CategoricalParameter, st.lists(st.text(), min_size=1, max_size=30, unique=True)),
)


@given(RANGES, UNIT)
def test_every_value_lies_in_its_range(values, unit):
    assert values.is_valid(values.from_unit(unit))


@given(RANGES)
def test_a_range_survives_json(values):
    assert msgspec.json.decode(msgspec.json.encode(values), type=AnyRange) == values


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        (ContinuousParameter(0, 10, "Linear"), 5.0),
        (ContinuousParameter(1e-4, 1.0, "Logarithmic"), 1e-2),
        (ContinuousParameter(0.9, 0.999, "ReverseLogarithmic"), 0.99),
        (ContinuousParameter(1e-4, 1.0), 1e-2),
        (ContinuousParameter(0.9, 0.999), 0.99),
        (ContinuousParameter(0.1, 1.0), 0.55),
        (ContinuousParameter(-1.0, 1.0), 0.0),
    ],
)
def test_the_middle_of_each_scale(values, middle):
    assert values.from_unit(0.5) == pytest.approx(middle)


def test_each_whole_number_has_the_same_share():
    values = IntegerParameter(3, 6, "Linear")
    drawn = [values.from_unit((step + 0.5) / 400) for step in range(400)]
    assert {value: drawn.count(value) for value in set(drawn)} == {3: 100, 4: 100, 5: 100, 6: 100}


def test_a_wide_range_of_whole_numbers_is_searched_by_magnitude():
    values = IntegerParameter(1, 10_000)
    assert values.scale == "Logarithmic"
    assert 60 <= values.from_unit(0.5) <= 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContinuousParameter(1.0, 0.1), "the range is empty"),
        (lambda: CategoricalParameter([None, 1]), "None would reach the script as the text 'None'"),
        (lambda: ContinuousParameter(0.0, 0.1, "Logarithmic"), "a logarithm needs values above 0"),
        (lambda: ContinuousParameter(0.5, 1.0, "ReverseLogarithmic"), "0 <= min_value <= max_value < 1"),
        (lambda: ContinuousParameter(0.5, 1.0, "log"), "no such scaling_type; give one of Auto, Linear"),
        (lambda: ContinuousParameter("0.5", 1.0), "'0.5' is of type str; give two numbers"),
        (lambda: ContinuousParameter(math.nan, 1.0), "between -1e9 and 1e9"),
        (lambda: ContinuousParameter(0.0, math.inf), "between -1e9 and 1e9"),
        (lambda: IntegerParameter(1, 2.0), "2.0 is of type float; give two whole numbers"),
        (lambda: IntegerParameter(True, 2), "True is of type bool"),
        (lambda: IntegerParameter(0, 2, "Logarithmic"), "a logarithm needs values above 0"),
        (lambda: IntegerParameter(0, 2, "ReverseLogarithmic"), "ReverseLogarithmic is for ContinuousParameter"),
        (lambda: CategoricalParameter([]), "0 values; SageMaker takes 1 to 30"),
        (lambda: CategoricalParameter(list(range(31))), "31 values"),
        (lambda: CategoricalParameter([1, "1"]), "a value stands twice"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_the_request_has_texts():
    assert ContinuousParameter(1e-5, 0.1).as_tuning_range("lr") == {
        "Name": "lr",
        "MinValue": "1e-05",
        "MaxValue": "0.1",
        "ScalingType": "Auto",
    }
    assert CategoricalParameter(["a", 2]).as_tuning_range("x") == {"Name": "x", "Values": ["a", "2"]}
    assert CategoricalParameter(["a", 2]).as_json_range("x") == {"Name": "x", "Values": ['"a"', '"2"']}


def test_one_value_needs_no_list():
    assert CategoricalParameter("adam").values == ["adam"]


def test_types_of_values_from_texts():
    assert ContinuousParameter.cast_to_type("0.5") == 0.5
    assert IntegerParameter.cast_to_type("5") == 5
    assert CategoricalParameter.cast_to_type(5) == "5"


def test_ends_of_other_float_types_become_plain_numbers():
    class Float64(float):
        """As that of numpy."""

    values = ContinuousParameter(Float64(0.1), Float64(0.5))
    assert (type(values.min_value), type(values.max_value)) == (float, float)
    assert msgspec.json.encode(values)
