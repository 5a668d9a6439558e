"""The ranges of tuned hyperparameters, with the names, rules and scales of SageMaker's SDK. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import msgspec

from herringbone.plan.option_errors import nearest_name
from herringbone_contract.errors import OptionError

SCALING_TYPES = ("Auto", "Linear", "Logarithmic", "ReverseLogarithmic")
# The limits of CreateHyperParameterTuningJob.
MAX_CATEGORIES = 30
MAX_ABSOLUTE_VALUE = 1e9
# Auto takes a logarithmic scale from this ratio of the range's ends on: a linear one would spend 99 % of its trials on
# the last two of the powers of ten.
# A little less, because 1 - 0.9 is not quite 100 times 1 - 0.999.
_WIDE_RATIO = 100 * (1 - 1e-9)


class ParameterRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a tuned hyperparameter may take; use one of the three classes below."""

    __all_types__: ClassVar = ("Continuous", "Categorical", "Integer")

    def is_valid(self, value: Any) -> bool:
        """Return whether the range contains a value."""
        raise NotImplementedError

    def as_tuning_range(self, name: str) -> dict[str, Any]:
        """Return the range as CreateHyperParameterTuningJob takes it."""
        raise NotImplementedError

    def from_unit(self, unit: float) -> Any:
        """Return the value at a place between 0 and 1 on the range's scale."""
        raise NotImplementedError


class _NumericRange(ParameterRange, frozen=True):
    """The part that both numeric ranges share: two ends and a scale."""

    min_value: float
    max_value: float
    scaling_type: str = "Auto"

    def _check(self, kind: str) -> None:
        text = f"{kind}({self.min_value!r}, {self.max_value!r}, scaling_type={self.scaling_type!r})"
        if self.scaling_type not in SCALING_TYPES:
            near = nearest_name(str(self.scaling_type), SCALING_TYPES)
            raise OptionError(f"{text}: no such scaling_type; give one of {', '.join(SCALING_TYPES)}{near}")
        if not abs(self.min_value) <= MAX_ABSOLUTE_VALUE or not abs(self.max_value) <= MAX_ABSOLUTE_VALUE:
            raise OptionError(f"{text}: SageMaker takes values between -1e9 and 1e9; tune a power or a multiple of it")
        if self.min_value > self.max_value:
            raise OptionError(f"{text}: the range is empty; give the smaller value first")
        if self.scaling_type == "Logarithmic" and self.min_value <= 0:
            raise OptionError(f"{text}: a logarithm needs values above 0; raise min_value, or use Linear")
        if self.scaling_type == "ReverseLogarithmic" and not 0 <= self.min_value <= self.max_value < 1:
            raise OptionError(f"{text}: ReverseLogarithmic needs 0 <= min_value <= max_value < 1; use Linear")

    @property
    def scale(self) -> str:
        """The scale that is searched: Auto decided, all others as they are.

        Auto is Logarithmic where the larger end is at least 100 times the smaller one, ReverseLogarithmic where that
        is so for their distances to 1, and otherwise Linear.
        """
        low, high = self.min_value, self.max_value
        if self.scaling_type != "Auto":
            return self.scaling_type
        if low > 0 and high >= _WIDE_RATIO * low:
            return "Logarithmic"
        is_reverse = isinstance(self, ContinuousParameter) and 0 <= low <= high < 1
        return "ReverseLogarithmic" if is_reverse and 1 - low >= _WIDE_RATIO * (1 - high) else "Linear"

    def is_valid(self, value: Any) -> bool:
        """Return whether the range contains a number."""
        return bool(self.min_value <= value <= self.max_value)

    def as_tuning_range(self, name: str) -> dict[str, Any]:
        """Return the range as CreateHyperParameterTuningJob takes it."""
        return {
            "Name": name,
            "MinValue": str(self.min_value),
            "MaxValue": str(self.max_value),
            "ScalingType": self.scaling_type,
        }


class ContinuousParameter(_NumericRange, frozen=True, tag="Continuous"):
    """A range of numbers, both ends included.

    >>> round(ContinuousParameter(1e-4, 1e-2, scaling_type="Logarithmic").from_unit(0.5), 6)
    0.001
    """

    def __post_init__(self) -> None:
        _check_numbers("ContinuousParameter", (int, float), "numbers", self.min_value, self.max_value)
        self._check("ContinuousParameter")
        # A numpy.float64 is a float that no file of a search can hold.
        for name, end in (("min_value", self.min_value), ("max_value", self.max_value)):
            if type(end) not in (int, float):
                msgspec.structs.force_setattr(self, name, float(end))

    @classmethod
    def cast_to_type(cls, value: Any) -> float:
        """Return a value of a hyperparameter's text as this range's type."""
        return float(value)

    def from_unit(self, unit: float) -> float:
        """Return the number at a place between 0 and 1 on the range's scale."""
        value = _on_scale(self.scale, float(self.min_value), float(self.max_value), unit)
        # Exponentials round past the ends.
        return min(max(value, float(self.min_value)), float(self.max_value))


class IntegerParameter(_NumericRange, frozen=True, tag="Integer"):
    """A range of whole numbers, both ends included.

    >>> [IntegerParameter(1, 3).from_unit(unit) for unit in (0.0, 0.34, 0.99)]
    [1, 2, 3]
    """

    min_value: int
    max_value: int

    def __post_init__(self) -> None:
        _check_numbers("IntegerParameter", (int,), "whole numbers", self.min_value, self.max_value)
        if self.scaling_type == "ReverseLogarithmic":
            raise OptionError(
                "IntegerParameter: ReverseLogarithmic is for ContinuousParameter; use Linear or Logarithmic"
            )
        self._check("IntegerParameter")

    @classmethod
    def cast_to_type(cls, value: Any) -> int:
        """Return a value of a hyperparameter's text as this range's type."""
        return int(value)

    def from_unit(self, unit: float) -> int:
        """Return the whole number at a place between 0 and 1 on the range's scale; each has its share of it."""
        # Half a number more on both sides, so that the ends are as likely as their neighbours.
        value = _on_scale(self.scale, self.min_value - 0.5, self.max_value + 0.5, unit)
        return min(max(math.floor(value + 0.5), self.min_value), self.max_value)


class CategoricalParameter(ParameterRange, frozen=True, tag="Categorical"):
    """A list of values, which a trial gets as texts, as with SageMaker.

    >>> CategoricalParameter([32, 64]).values
    ['32', '64']
    """

    values: list[str]

    def __post_init__(self) -> None:
        given = self.values if isinstance(self.values, (list, tuple)) else [self.values]
        values = [value if isinstance(value, str) else str(value) for value in given]
        if any(value is None for value in given):
            raise OptionError("CategoricalParameter: None would reach the script as the text 'None'; leave it out")
        if not 1 <= len(values) <= MAX_CATEGORIES:
            raise OptionError(f"CategoricalParameter: {len(values)} values; SageMaker takes 1 to {MAX_CATEGORIES}")
        if len(set(values)) != len(values):
            raise OptionError(f"CategoricalParameter({values!r}): a value stands twice; keep one of each")
        # A frozen struct has no assignment.
        msgspec.structs.force_setattr(self, "values", values)

    @classmethod
    def cast_to_type(cls, value: Any) -> str:
        """Return a value of a hyperparameter's text as this range's type."""
        return str(value)

    def is_valid(self, value: Any) -> bool:
        """Return whether the list has a value."""
        return value in self.values

    def as_tuning_range(self, name: str) -> dict[str, Any]:
        """Return the list as CreateHyperParameterTuningJob takes it."""
        return {"Name": name, "Values": list(self.values)}

    def as_json_range(self, name: str) -> dict[str, Any]:
        """Return the list as framework images take it: each value is a JSON text."""
        return {"Name": name, "Values": [json.dumps(value) for value in self.values]}

    def from_unit(self, unit: float) -> str:
        """Return the value at a place between 0 and 1; each has the same share of it."""
        return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]


AnyRange = ContinuousParameter | IntegerParameter | CategoricalParameter


def _check_numbers(kind: str, types: tuple[type, ...], words: str, *ends: Any) -> None:
    for end in ends:
        # True is an int in Python. NaN is caught by the comparison with the largest value.
        if isinstance(end, bool) or not isinstance(end, types):
            raise OptionError(f"{kind}: {end!r} is of type {type(end).__name__}; give two {words}")


def _on_scale(scale: str, low: float, high: float, unit: float) -> float:
    if scale == "Logarithmic":
        return math.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
    if scale == "ReverseLogarithmic":
        return 1 - math.exp(math.log1p(-low) + unit * (math.log1p(-high) - math.log1p(-low)))
    return low + unit * (high - low)
