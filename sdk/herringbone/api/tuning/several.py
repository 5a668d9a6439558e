"""Search several estimators in one tuning job, which only SageMaker does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from herringbone.api.tuning.service import Candidate
from herringbone_contract.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.api.estimator import Estimator
    from herringbone.plan.options.typed import MetricDefinition
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.parameters import ParameterRange

_SAGEMAKER = "sagemaker"


class Member(Protocol):
    """The tuner of one of several estimators: `HyperparameterTuner`, which imports this module."""

    estimator: Estimator
    _metrics: tuple[MetricDefinition, ...]

    def definition(self, name: str) -> TuningDefinition: ...


_Tuner = TypeVar("_Tuner", bound=Member)


def members_of(
    tuner: type[_Tuner],
    estimators: Mapping[str, Estimator],
    metrics: Mapping[str, str],
    ranges: Mapping[str, Mapping[str, ParameterRange]],
    definitions: Mapping[str, Sequence[Mapping[str, str]]] | None,
    settings: Mapping[str, Any],
) -> dict[str, _Tuner]:
    """Return a tuner for each estimator, which checks its settings and makes its part of the definition.

    >>> members_of(HyperparameterTuner, {"a": one}, {"a": "loss"}, {"a": ranges}, None, {})      # doctest: +SKIP

    Raises `OptionError` for dicts that do not fit together, and `UnsupportedError` for an estimator that runs elsewhere
    than on `ml.*`.
    """
    if not estimators:
        raise OptionError("estimator_dict: empty; give the estimators by their names")
    _check_names("objective_metric_name_dict", metrics, estimators)
    _check_names("hyperparameter_ranges_dict", ranges, estimators)
    if unknown := sorted(set(definitions or {}) - set(estimators)):
        raise OptionError(f"metric_definitions_dict: {unknown[0]!r} is no key of estimator_dict: {sorted(estimators)}")
    if settings.get("hyperparameters_to_keep_static_dict") or settings.get("autotune"):
        raise UnsupportedError(
            "autotune: Herringbone sends it for one estimator; give each of several its hyperparameter ranges"
        )
    for name, estimator in estimators.items():
        backend = estimator._backend.name
        if backend != _SAGEMAKER:
            raise UnsupportedError(
                f"estimator_dict: only SageMaker searches several estimators in one tuning job, and {name!r} runs on "
                f"{backend}; give each an instance_type ml.*, or make a HyperparameterTuner for each"
            )
    shared = {name: value for name, value in settings.items() if name != "hyperparameters_to_keep_static_dict"}
    make: Any = tuner
    return {
        name: make(estimator, metrics[name], ranges[name], (definitions or {}).get(name), **shared)
        for name, estimator in estimators.items()
    }


def candidates_of(members: Mapping[str, Member], inputs: Any, name: str) -> list[Candidate]:
    """Return the estimators of the tuning job `name`; `inputs` are a dict by the estimators' names, or None."""
    channels: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    if inputs is not None and set(channels) != set(members):
        raise OptionError(f"inputs: give a dict with the inputs of each estimator, by its name: {', '.join(members)}")
    return [
        Candidate(member.estimator._asked(channels.get(key)), member.definition(name), member._metrics, name=key)
        for key, member in members.items()
    ]


def _check_names(argument: str, given: Mapping[str, Any], estimators: Mapping[str, Any]) -> None:
    if set(given) != set(estimators):
        raise OptionError(f"{argument}: has the keys {sorted(given)}; estimator_dict has {sorted(estimators)}")
