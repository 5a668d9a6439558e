"""Ranges and trials in Optuna's types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import optuna

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, IntegerParameter

Distribution = optuna.distributions.BaseDistribution


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from writing a line to standard error for each study that it makes."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        # The user's own code may use Optuna in this process.
        optuna.logging.set_verbosity(verbosity)


def natural_space(definition: TuningDefinition) -> dict[str, Distribution]:
    """Return the ranges as Optuna's distributions, in the order of names."""
    return {name: _distribution(definition.ranges[name]) for name in sorted(definition.ranges)}


def searched_space(definition: TuningDefinition) -> dict[str, Distribution]:
    """Return the distributions that are searched: the natural ones, but distances to 1 for a reversed logarithm.

    Optuna has a logarithmic scale and no reversed one.
    """
    return {
        name: optuna.distributions.FloatDistribution(1 - ranges.max_value, 1 - ranges.min_value, log=True)
        if not isinstance(ranges, CategoricalParameter) and _is_mirrored(ranges)
        else _distribution(ranges)
        for name, ranges in sorted(definition.ranges.items())
    }


def to_searched(
    definition: TuningDefinition, values: Mapping[str, Any], space: Mapping[str, Distribution]
) -> dict[str, Any]:
    """Return a configuration as `searched_space` has it."""
    return {
        name: _clip(space[name], 1 - values[name]) if _is_mirrored(ranges) else values[name]
        for name, ranges in definition.ranges.items()
    }


def from_searched(definition: TuningDefinition, searched: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration from `searched_space` as the trial gets it, each value in its range."""
    values = {}
    for name, value in searched.items():
        ranges = definition.ranges[name]
        if _is_mirrored(ranges):
            assert not isinstance(ranges, CategoricalParameter)
            # 1 - (1 - x) is not always x.
            value = min(max(1 - value, float(ranges.min_value)), float(ranges.max_value))
        values[name] = value
    return values


def _is_mirrored(ranges: AnyRange) -> bool:
    return not isinstance(ranges, CategoricalParameter) and ranges.scale == "ReverseLogarithmic"


def _clip(space: Distribution, value: float) -> float:
    assert isinstance(space, optuna.distributions.FloatDistribution)
    return min(max(value, space.low), space.high)


def _distribution(ranges: AnyRange) -> Distribution:
    if isinstance(ranges, CategoricalParameter):
        return optuna.distributions.CategoricalDistribution(ranges.values)
    is_log = ranges.scale == "Logarithmic"
    if isinstance(ranges, IntegerParameter):
        return optuna.distributions.IntDistribution(ranges.min_value, ranges.max_value, log=is_log)
    return optuna.distributions.FloatDistribution(float(ranges.min_value), float(ranges.max_value), log=is_log)
