"""The definition of a search, everything that its decisions depend on besides results; and the names of jobs. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from herringbone.plan.option_errors import explain
from herringbone.tuner.configs import HyperbandStrategyConfig, TuningJobCompletionCriteriaConfig, WarmStartTypes
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ParameterRange
from herringbone_contract.errors import JobNameError, OptionError, UnsupportedError

# SageMaker's limit, lower than that of training jobs: the name of a trial begins with that of its tuning job.
MAX_NAME_CHARS = 32
MAX_RANGES = 30
# The hyperparameters that SageMaker takes Hyperband's epochs from, in its order.
RESOURCE_NAMES = ("epochs", "numepochs", "n-epochs", "n_epochs", "num_epochs")
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
# SageMaker's limit of combinations is the one of jobs; ours keeps a typing error from filling the disk.
_MAX_JOBS = 10_000
# The tuner's arguments whose members have shorter names here.
ARGUMENTS = {"metric": "objective_metric_name", "ranges": "hyperparameter_ranges", "seed": "random_seed"}
Positive = Annotated[int, msgspec.Meta(ge=1)]


class PriorTrial(msgspec.Struct, frozen=True):
    """A result of an earlier search: `values` of the hyperparameters that this search tunes, and the objective."""

    values: dict[str, Any]
    objective: float
    parent: str = ""
    job: str = ""


class TuningDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that is known about a search before its first trial; it is written to `definition.json`.

    Make one with `define`, which checks it. Members have the names of SageMaker's tuner, except:

    - `static` are the hyperparameters that all trials share, without those that `ranges` has.
    - `seed` may be None on `ml.*` only.
    - `max_jobs` counts the configurations. A job that continues an earlier trial (Hyperband) is not counted again.
    - `priors` are the results of `parents`, copied when the search begins, so that it does not change with them.
    """

    name: str
    metric: str
    ranges: dict[str, AnyRange]
    static: dict[str, Any] = {}
    objective_type: Literal["Maximize", "Minimize"] = "Maximize"
    strategy: Literal["Bayesian", "Random", "Hyperband", "Grid"] = "Bayesian"
    max_jobs: Positive | None = None
    max_parallel_jobs: Positive = 1
    max_runtime_in_seconds: Positive | None = None
    early_stopping_type: Literal["Off", "Auto"] = "Off"
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    hyperband: HyperbandStrategyConfig | None = None
    completion: TuningJobCompletionCriteriaConfig | None = None
    warm_start_type: WarmStartTypes | None = None
    parents: tuple[str, ...] = ()
    priors: tuple[PriorTrial, ...] = ()

    @property
    def job_limit(self) -> int:
        """The number of configurations: `max_jobs`, or SageMaker's default, all combinations of Grid, otherwise 1."""
        if self.max_jobs is not None:
            return self.max_jobs
        return self.combinations if self.strategy == "Grid" else 1

    @property
    def combinations(self) -> int:
        """The number of combinations of a grid."""
        return math.prod(len(x.values) for x in self.ranges.values() if isinstance(x, CategoricalParameter))

    @property
    def resource_name(self) -> str | None:
        """The hyperparameter by which Hyperband says until which epoch a trial trains; None for other strategies."""
        if self.strategy != "Hyperband":
            return None
        if self.hyperband is not None and self.hyperband.resource_name is not None:
            return self.hyperband.resource_name
        return next((name for name in RESOURCE_NAMES if name in self.static), None)

    @property
    def resources(self) -> tuple[int, int]:
        """Hyperband's smallest and largest number of epochs."""
        config = self.hyperband or HyperbandStrategyConfig()
        most = config.max_resource
        return config.min_resource, self.static[self.resource_name or ""] if most is None else most


def define(settings: Mapping[str, Any], *, without_ranges: bool = False) -> TuningDefinition:
    """Return the definition that settings make.

    >>> ranges = {"activation": CategoricalParameter(["relu", "tanh"])}
    >>> define({"name": "digits", "metric": "accuracy", "ranges": ranges, "strategy": "Grid"}).job_limit
    2

    `without_ranges` allows a definition that has none: SageMaker's autotune finds them. Raises `OptionError` for a
    setting that is unknown, of the wrong type, out of range or against another one.
    """
    for name, values in settings["ranges"].items():
        if not isinstance(values, ParameterRange):
            raise OptionError(
                f"hyperparameter_ranges: {name!r} is {values!r}; give ContinuousParameter(0.001, 0.1),"
                " IntegerParameter(1, 8) or CategoricalParameter(['a', 'b'])"
            )
    try:
        definition = msgspec.convert(dict(settings), TuningDefinition)
    except msgspec.ValidationError as error:
        message = explain(error, settings, TuningDefinition)
        member = re.split(r"\W", message, maxsplit=1)[0]
        raise OptionError(ARGUMENTS.get(member, member) + message[len(member) :]) from None
    if len(definition.name) > MAX_NAME_CHARS or not _NAME.fullmatch(definition.name):
        raise OptionError(
            f"name: {definition.name!r}: a tuning job's name has letters, digits and single hyphens between them, at"
            f" most {MAX_NAME_CHARS} characters"
        )
    if definition.ranges or not without_ranges:
        _check_ranges(definition)
    _check_strategy(definition)
    return definition


def check_local(definition: TuningDefinition) -> None:
    """Raise `UnsupportedError` or `OptionError` for what AWS alone can search, before a local search begins."""
    if definition.seed is None:
        raise OptionError(
            "random_seed: a search that is not AWS's needs one, so that it can go on after a kill; give a number"
        )
    if definition.completion is not None and definition.completion.complete_on_convergence:
        raise UnsupportedError(
            "complete_on_convergence: AWS does not document its rule, so it is for ml.* only; use"
            " max_number_of_training_jobs_not_improving"
        )
    if definition.strategy == "Hyperband":
        _check_resource(definition)
        if definition.completion is not None and definition.completion.max_number_of_training_jobs_not_improving:
            raise OptionError(
                "max_number_of_training_jobs_not_improving: Hyperband's short trials are not meant to improve the best"
                " objective; use target_objective_metric_value"
            )


def _check_ranges(definition: TuningDefinition) -> None:
    if not 1 <= len(definition.ranges) <= MAX_RANGES:
        raise OptionError(
            f"hyperparameter_ranges: {len(definition.ranges)} ranges; give 1 to {MAX_RANGES}, or autotune=True"
        )
    if twice := sorted(definition.ranges.keys() & definition.static.keys()):
        raise OptionError(f"hyperparameter_ranges: {twice[0]!r} is also static; leave one of the two out")


def _check_strategy(definition: TuningDefinition) -> None:
    strategy, jobs = definition.strategy, definition.max_jobs
    if jobs is not None and jobs > _MAX_JOBS:
        raise OptionError(f"max_jobs: {jobs}; give at most {_MAX_JOBS}")
    if strategy == "Grid":
        _check_grid(definition)
    if definition.hyperband is not None and strategy != "Hyperband":
        raise OptionError(f"strategy_config: it is for strategy='Hyperband', not {strategy!r}; leave it out")
    if strategy == "Hyperband" and definition.early_stopping_type == "Auto":
        raise OptionError(
            "early_stopping_type: Hyperband stops trials by its own rule; write early_stopping_type='Off'"
        )
    if (definition.warm_start_type is None) != (not definition.parents):
        raise OptionError("warm_start_config: give both a type and parents")
    if definition.warm_start_type is not None and strategy not in ("Bayesian", "Random"):
        raise OptionError(f"warm_start_config: strategy={strategy!r} uses no earlier results; use Bayesian")


def _check_grid(definition: TuningDefinition) -> None:
    for name, values in definition.ranges.items():
        if not isinstance(values, CategoricalParameter):
            kind = type(values).__name__
            raise OptionError(f"hyperparameter_ranges: {name!r} is of {kind}; Grid takes CategoricalParameter only")
    if definition.combinations > _MAX_JOBS:
        raise OptionError(
            f"hyperparameter_ranges: {definition.combinations} combinations; a grid has at most {_MAX_JOBS}"
        )
    if definition.max_jobs not in (None, definition.combinations):
        raise OptionError(
            f"max_jobs: {definition.max_jobs}, but the grid has {definition.combinations} combinations, and Grid trains"
            " each; leave max_jobs out, or use Random"
        )


def _check_resource(definition: TuningDefinition) -> None:
    name = definition.resource_name
    if name is None:
        raise OptionError(
            "strategy: Hyperband changes how many epochs a trial trains; give the estimator"
            f" hyperparameters={{'epochs': 27}} (or {', '.join(RESOURCE_NAMES[1:])}), or name the hyperparameter in"
            " HyperbandStrategyConfig(resource_name=...)"
        )
    if name in definition.ranges:
        raise OptionError(
            f"hyperparameter_ranges: {name!r} is what Hyperband gives each trial; take it out of the ranges"
        )
    config = definition.hyperband or HyperbandStrategyConfig()
    most = definition.static.get(name) if config.max_resource is None else config.max_resource
    if isinstance(most, bool) or not isinstance(most, int) or most < config.min_resource:
        raise OptionError(
            f"strategy_config: Hyperband's largest number of epochs is {most!r}; give"
            f" HyperbandStrategyConfig(max_resource=...) with at least min_resource={config.min_resource}"
        )


def default_tuning_name(base: str, now: datetime) -> str:
    """Return `base` followed by the time to the second, as AWS's SDK does. A long base is cut, the time never is.

    >>> default_tuning_name("pytorch-training-of-digits", datetime(2026, 11, 21, 9, 5, 7))
    'pytorch-training-o-261121-090507'
    """
    stamp = now.strftime("-%y%m%d-%H%M%S")
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-")[: MAX_NAME_CHARS - len(stamp)].strip("-")
    return (cleaned or "tuning") + stamp


def check_tuning_name(name: str) -> str:
    """Return the name unchanged. Raises `JobNameError` for a name that SageMaker would refuse."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise JobNameError(
            f"tuning job name {name!r}: a name has 1 to {MAX_NAME_CHARS} letters, digits and hyphens, and begins and "
            "ends with a letter or a digit"
        )
    return name


def trial_job_name(tuning: str, number: int) -> str:
    """Return the name of a trial's job, a pure function: a search that was killed finds the job by it.

    >>> trial_job_name("digits", 0)
    'digits-001'
    """
    return f"{tuning}-{number + 1:03d}"
