"""The section `tuning` of a job file: the keyword arguments of `HyperparameterTuner` in YAML. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from herringbone.plan.option_errors import nearest_name
from herringbone.tuner.configs import (
    HyperbandStrategyConfig,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone_contract.errors import OptionError, near_words

SECTION = "tuning"
Made = TypeVar("Made")
_KINDS = ("continuous", "integer", "categorical")
# The values of these keys are plain; `HyperparameterTuner` checks them.
_PLAIN = (
    *("objective_metric_name", "objective_type", "metric_definitions", "strategy", "max_jobs", "max_parallel_jobs"),
    *("max_runtime_in_seconds", "early_stopping_type", "random_seed", "base_tuning_job_name", "tags", "autotune"),
    "hyperparameters_to_keep_static",
)
# The keys of sections within the section.
_INNER = {
    "strategy_config": ("max_resource", "min_resource", "resource_name"),
    "completion_criteria_config": TuningJobCompletionCriteriaConfig.__struct_fields__,
    "warm_start_config": ("type", "parents"),
}
_FORMS = "write {continuous: [low, high]}, {integer: [low, high]}, either with scaling_type, or a list of values"


def tuner_arguments(section: Any) -> dict[str, Any]:
    """Return the keyword arguments of `HyperparameterTuner` that the section of a job file means.

    >>> tuner_arguments({"objective_metric_name": "loss", "hyperparameter_ranges": {"depth": {"integer": [1, 8]}}})
    {'objective_metric_name': 'loss', 'hyperparameter_ranges': {'depth': IntegerParameter(min_value=1, max_value=8,...

    Keys that are missing are missing in the result. Raises `OptionError` for a key or a range that is none.
    """
    settings = _mapping(SECTION, section)
    readers: dict[str, Callable[[str, Any], Any]] = {
        **dict.fromkeys(_PLAIN, lambda _, value: value),
        "hyperparameter_ranges": _ranges,
        "strategy_config": _strategy_config,
        "completion_criteria_config": _completion,
        "warm_start_config": _warm_start,
    }
    _check_keys(SECTION, settings, readers)
    return {name: readers[name](f"{SECTION}.{name}", value) for name, value in settings.items()}


def _ranges(place: str, value: Any) -> dict[str, AnyRange]:
    return {name: _range(f"{place}.{name}", form) for name, form in _mapping(place, value).items()}


def _range(place: str, form: Any) -> AnyRange:
    if isinstance(form, list):
        return _made(place, CategoricalParameter, {"values": form})
    if not isinstance(form, dict):
        raise OptionError(f"{place}: {form!r} is no range; {_FORMS}")
    kinds = [kind for kind in _KINDS if kind in form]
    if len(kinds) != 1:
        raise OptionError(f"{place}: {form!r} names {len(kinds) or 'no'} kinds of range; {_FORMS}")
    kind = kinds[0]
    _check_keys(place, form, (kind,) if kind == "categorical" else (kind, "scaling_type"))
    if kind == "categorical":
        return _range(place, form[kind] if isinstance(form[kind], list) else [form[kind]])
    ends = form[kind]
    if not isinstance(ends, list) or len(ends) != 2:
        raise OptionError(f"{place}.{kind}: {ends!r} is no pair; write {kind}: [low, high]")
    scaling = {"scaling_type": form["scaling_type"]} if "scaling_type" in form else {}
    arguments = {"min_value": ends[0], "max_value": ends[1], **scaling}
    if kind == "integer":
        return _made(place, IntegerParameter, arguments)
    return _made(place, ContinuousParameter, arguments)


def _strategy_config(place: str, value: Any) -> StrategyConfig:
    # Only Hyperband has settings, so the file needs no level that names it; SageMaker's form is read as well.
    settings = _mapping(place, value)
    settings = _mapping(place, settings.get("hyperband_strategy_config", settings))
    _check_keys(place, settings, _INNER["strategy_config"])
    return StrategyConfig(_made(place, HyperbandStrategyConfig, settings))


def _completion(place: str, value: Any) -> TuningJobCompletionCriteriaConfig:
    settings = _mapping(place, value)
    _check_keys(place, settings, _INNER["completion_criteria_config"])
    return _made(place, TuningJobCompletionCriteriaConfig, settings)


def _warm_start(place: str, value: Any) -> WarmStartConfig:
    settings = _mapping(place, value)
    _check_keys(place, settings, _INNER["warm_start_config"])
    kinds = {kind.value: kind for kind in WarmStartTypes}
    kind = settings.get("type")
    if kind not in kinds:
        raise OptionError(f"{place}.type: {kind!r} is none of {', '.join(kinds)}{nearest_name(str(kind), list(kinds))}")
    return _made(place, WarmStartConfig, {"warm_start_type": kinds[kind], "parents": settings.get("parents")})


def _made(place: str, kind: Callable[..., Made], arguments: Mapping[str, Any]) -> Made:
    try:
        return kind(**arguments)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None


def _mapping(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"{place}: expected a mapping of names to values, got {value!r}")
    return value


def _check_keys(place: str, settings: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in settings:
        if name not in names:
            near = near_words(name, names)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
            if place == SECTION and (inner := next((key for key, keys in _INNER.items() if name in keys), None)):
                hint = f"it belongs into {SECTION}.{inner}"
            raise OptionError(f"{place}.{name}: no such key; {hint}")
