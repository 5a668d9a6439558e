"""The settings of a search that are objects in SageMaker's SDK, and the further arguments of its tuner. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from herringbone.plan.option_errors import unknown_option
from herringbone_contract.errors import OptionError, UnsupportedError

# SageMaker's limits.
MAX_RESOURCE = 20_000
MAX_PARENTS = 5


class WarmStartTypes(enum.Enum):
    """The two ways in which earlier searches inform a new one.

    `IDENTICAL_DATA_AND_ALGORITHM`: their results count as results of this search. `TRANSFER_LEARNING`: data or code
    have changed, so their results only tell where to begin.
    """

    IDENTICAL_DATA_AND_ALGORITHM = "IdenticalDataAndAlgorithm"
    TRANSFER_LEARNING = "TransferLearning"


class WarmStartConfig(msgspec.Struct, frozen=True):
    """Earlier searches whose results a new search begins with.

    >>> WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, {"digits-1"}).parents
    {'digits-1'}
    """

    warm_start_type: WarmStartTypes
    parents: Iterable[str]

    def __post_init__(self) -> None:
        if not isinstance(self.warm_start_type, WarmStartTypes):
            known = ", ".join(f"WarmStartTypes.{kind.name}" for kind in WarmStartTypes)
            raise OptionError(
                f"WarmStartConfig: {self.warm_start_type!r} is no type of a warm start; give one of {known}"
            )
        parents = {self.parents} if isinstance(self.parents, str) else set(self.parents or ())
        if not 1 <= len(parents) <= MAX_PARENTS or not all(isinstance(name, str) and name for name in parents):
            raise OptionError(
                f"WarmStartConfig: parents {self.parents!r}: give the names of 1 to {MAX_PARENTS} tuning jobs"
            )
        msgspec.structs.force_setattr(self, "parents", parents)

    @property
    def type(self) -> WarmStartTypes:
        """The type, under the name that SageMaker's SDK gives the attribute."""
        return self.warm_start_type

    def to_input_req(self) -> dict[str, Any]:
        """Return the member `WarmStartConfig` of CreateHyperParameterTuningJob."""
        names = [{"HyperParameterTuningJobName": name} for name in sorted(self.parents)]
        return {"WarmStartType": self.type.value, "ParentHyperParameterTuningJobs": names}


class HyperbandStrategyConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The epochs that Hyperband gives to its trials.

    >>> HyperbandStrategyConfig(max_resource=27, min_resource=1).to_input_req()
    {'MinResource': 1, 'MaxResource': 27}

    `max_resource` None takes it from the hyperparameter `epochs`, `numepochs`, `n-epochs`, `n_epochs` or `num_epochs`.
    `resource_name` is an addition of ours: the hyperparameter by which a trial is told until which epoch it trains,
    where it has another name than those; SageMaker does not get it.
    """

    max_resource: int | None = None
    min_resource: int = 1
    resource_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_resource", "min_resource"):
            value = getattr(self, name)
            if value is None and name == "max_resource":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RESOURCE:
                raise OptionError(
                    f"HyperbandStrategyConfig: {name}={value!r}; give a whole number, 1 to {MAX_RESOURCE}"
                )
        if self.max_resource is not None and self.min_resource > self.max_resource:
            raise OptionError(
                f"HyperbandStrategyConfig: min_resource={self.min_resource} is above max_resource={self.max_resource}"
            )

    def to_input_req(self) -> dict[str, Any]:
        """Return the member `HyperbandStrategyConfig` of CreateHyperParameterTuningJob."""
        request = {"MinResource": self.min_resource, "MaxResource": self.max_resource}
        return {name: value for name, value in request.items() if value is not None}


class StrategyConfig(msgspec.Struct, frozen=True):
    """The settings of a strategy; only Hyperband has some."""

    hyperband_strategy_config: HyperbandStrategyConfig

    def to_input_req(self) -> dict[str, Any]:
        """Return the member `StrategyConfig` of CreateHyperParameterTuningJob."""
        return {"HyperbandStrategyConfig": self.hyperband_strategy_config.to_input_req()}


class TuningJobCompletionCriteriaConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reasons to end a search before `max_jobs`.

    >>> TuningJobCompletionCriteriaConfig(target_objective_metric_value=0.99).to_input_req()
    {'TargetObjectiveMetricValue': 0.99}

    `complete_on_convergence` uses a rule that AWS does not document, so only `ml.*` takes it.
    """

    max_number_of_training_jobs_not_improving: int | None = None
    complete_on_convergence: bool | None = None
    target_objective_metric_value: float | None = None

    def __post_init__(self) -> None:
        count = self.max_number_of_training_jobs_not_improving
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 3):
            raise OptionError(
                f"TuningJobCompletionCriteriaConfig: max_number_of_training_jobs_not_improving={count!r}; give a whole"
                " number, at least 3"
            )

    def to_input_req(self) -> dict[str, Any]:
        """Return the member `TuningJobCompletionCriteria` of CreateHyperParameterTuningJob."""
        request: dict[str, Any] = {}
        if self.max_number_of_training_jobs_not_improving is not None:
            count = self.max_number_of_training_jobs_not_improving
            request["BestObjectiveNotImproving"] = {"MaxNumberOfTrainingJobsNotImproving": count}
        if self.target_objective_metric_value is not None:
            request["TargetObjectiveMetricValue"] = self.target_objective_metric_value
        if self.complete_on_convergence is not None:
            state = "Enabled" if self.complete_on_convergence else "Disabled"
            request["ConvergenceDetected"] = {"CompleteOnConvergence": state}
        return request


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
