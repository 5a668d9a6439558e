"""Choose ranges from example values, for `autotune=True`. Pure.

AWS does not document its rule; `ml.*` uses AWS's, and all else uses this one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from herringbone.tuner.definition import MAX_RANGES, RESOURCE_NAMES
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone_contract.errors import OptionError

# The length of a training and its random numbers are no quality of a model.
_NEVER = {*RESOURCE_NAMES, "seed", "random_seed", "random-seed", "max_steps", "max-steps", "steps"}
_REAL_FACTOR, _WHOLE_FACTOR = 10.0, 4


def autotuned(
    static: Mapping[str, Any], keep_static: Collection[str] | None = None
) -> tuple[dict[str, AnyRange], dict[str, Any]]:
    """Return ranges around the values of hyperparameters, and the hyperparameters that stay as they are.

    >>> autotuned({"lr": 0.01, "epochs": 3})[0]
    {'lr': ContinuousParameter(min_value=0.001, max_value=0.1, scaling_type='Logarithmic')}

    | value | range |
    |---|---|
    | a number from 0.5 to below 1, as momentum | a tenth to ten times its distance to 1, ReverseLogarithmic |
    | another number above 0 | a tenth to ten times, Logarithmic; one below 1 stays below 1 |
    | a whole number above 0 | a quarter to four times, Logarithmic |
    | True, False | both |
    | all others, epochs, steps and seeds | stays |

    Raises `OptionError` for a name in `keep_static` that is no hyperparameter, and where no range is left.
    """
    keep = set(keep_static or ())
    if unknown := sorted(keep - static.keys()):
        raise OptionError(
            f"hyperparameters_to_keep_static: {unknown[0]!r} is none of the estimator's hyperparameters:"
            f" {', '.join(static) or 'it has none'}"
        )
    ranges = {
        name: found
        for name, value in static.items()
        if name not in keep | _NEVER and (found := _range_around(value)) is not None
    }
    if not 1 <= len(ranges) <= MAX_RANGES:
        raise OptionError(
            f"autotune: {len(ranges)} of the estimator's hyperparameters are numbers or booleans to tune; give it 1 to"
            f" {MAX_RANGES} of them, or give hyperparameter_ranges"
        )
    return ranges, {name: value for name, value in static.items() if name not in ranges}


def _range_around(value: Any) -> AnyRange | None:
    if isinstance(value, bool):
        return CategoricalParameter([True, False])  # type: ignore[list-item]  # becomes texts
    if isinstance(value, int) and value > 0:
        return IntegerParameter(max(value // _WHOLE_FACTOR, 1), value * _WHOLE_FACTOR, "Logarithmic")
    if not isinstance(value, float) or not 0 < value < float("inf"):
        return None
    if 0.5 <= value < 1:
        distance = 1 - value
        return ContinuousParameter(
            max(1 - distance * _REAL_FACTOR, 0.0), 1 - distance / _REAL_FACTOR, "ReverseLogarithmic"
        )
    most = value * _REAL_FACTOR
    # Rates and shares: what is below 1 is often so by its nature.
    return ContinuousParameter(value / _REAL_FACTOR, min(most, 1.0) if value < 1 else most, "Logarithmic")
