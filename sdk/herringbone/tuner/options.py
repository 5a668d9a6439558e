"""Declare the further arguments of `HyperparameterTuner`, for editors and type checkers, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from herringbone.plan.option_errors import unknown_option
from herringbone.tuner.configs import StrategyConfig, TuningJobCompletionCriteriaConfig, WarmStartConfig
from herringbone_contract.errors import OptionError, UnsupportedError


class TunerOptions(TypedDict, total=False):
    """The arguments after the eighth, in the order of AWS's SDK."""

    max_runtime_in_seconds: int | None
    """The time after which a search is stopped."""
    tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None
    """Tags of the tuning job."""
    base_tuning_job_name: str | None
    """The beginning of generated names; without it, the name of the script."""
    warm_start_config: WarmStartConfig | None
    """Earlier tuning jobs whose results this one uses."""
    strategy_config: StrategyConfig | None
    """The epochs of Hyperband."""
    completion_criteria_config: TuningJobCompletionCriteriaConfig | None
    """Reasons to end before `max_jobs`."""
    early_stopping_type: str
    """"Auto" stops trials whose metric is worse than the median of earlier ones at the same epoch; "Off" does not."""
    estimator_name: str | None
    """The name of one of several estimators; refused, because there is one."""
    random_seed: int | None
    """The seed of the search; without it, one is drawn and kept."""
    autotune: bool
    """Choose ranges around the values of the estimator's hyperparameters."""
    hyperparameters_to_keep_static: Sequence[str] | None
    """Hyperparameters that `autotune` leaves as they are."""


DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(TunerOptions.__annotations__),
    "early_stopping_type": "Off",
    "autotune": False,
}


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the defaults of those that are not given.

    >>> with_defaults({"random_seed": 3})["early_stopping_type"]
    'Off'

    Raises `OptionError` for an unknown name, or options that exclude each other.
    """
    for name in options:
        if name not in DEFAULTS:
            raise OptionError(unknown_option(name, list(DEFAULTS), {}))
    values = {**DEFAULTS, **options}
    if values["estimator_name"] is not None:
        raise UnsupportedError("estimator_name: it names one of several estimators, and there is one; leave it out")
    if values["hyperparameters_to_keep_static"] and not values["autotune"]:
        raise OptionError("hyperparameters_to_keep_static: it limits autotune; give autotune=True, or leave it out")
    return values


def tag_list(tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return tags as the service's list of keys and values.

    >>> tag_list({"team": "vision"})
    [{'Key': 'team', 'Value': 'vision'}]
    """
    if isinstance(tags, Mapping):
        return [{"Key": str(key), "Value": str(value)} for key, value in tags.items()]
    return [dict(tag) for tag in tags or ()]


def asks(value: object) -> bool:
    """Return whether an argument asks for something; AWS's SDK takes a dict by the names of several estimators.

    >>> asks({"small": False}), asks({"small": True}), asks(None)
    (False, True, False)
    """
    return any(value.values()) if isinstance(value, Mapping) else bool(value)
