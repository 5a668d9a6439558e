"""The members of a search and those of CreateHyperParameterTuningJob that carry them: one table for both ways. Pure.

TuningDefinition -- members_of --> a request to SageMaker, or the description of a search on own hosts
SageMaker's description, or a call of the service -- definition_members --> the members of a TuningDefinition
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from herringbone.aws.fields import Member
from herringbone.plan.options.members import take_options, to_members
from herringbone.tuner.configs import HyperbandStrategyConfig, TuningJobCompletionCriteriaConfig, WarmStartTypes
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone_contract.errors import OptionError, UnsupportedError

CONFIG = "HyperParameterTuningJobConfig"
_NAME = "HyperParameterTuningJobName"


Ranges = dict[str, list[dict[str, Any]]]


def parameter_ranges(ranges: Mapping[str, AnyRange], *, in_script_mode: bool = False) -> Ranges:
    """Return ranges as the member ParameterRanges, with empty lists, as AWS's SDK.

    In script mode, the values of a list are texts in JSON, as all hyperparameters are.
    """
    lists: Ranges = {f"{kind}ParameterRanges": [] for kind in ("Integer", "Continuous", "Categorical")}
    for name, values in ranges.items():
        if in_script_mode and isinstance(values, CategoricalParameter):
            member = values.as_json_range(name)
        else:
            member = values.as_tuning_range(name)
        lists[f"{type(values).__name__}Ranges"].append(member)
    return lists


def ranges_of(described: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, AnyRange]:
    """Return the ranges of a member ParameterRanges. Raises `UnsupportedError` where one is unknown here."""
    ranges: dict[str, AnyRange] = {}
    kinds: dict[str, tuple[Callable[..., AnyRange], Callable[[str], float]]] = {
        "Continuous": (ContinuousParameter, _number),
        "Integer": (IntegerParameter, int),
    }
    try:
        for kind, (make, number) in kinds.items():
            for entry in described.get(f"{kind}ParameterRanges", ()):
                ends = number(entry["MinValue"]), number(entry["MaxValue"])
                ranges[entry["Name"]] = make(*ends, entry.get("ScalingType", "Auto"))
    except (ValueError, OptionError) as error:
        raise UnsupportedError(f"the tuning job has a range that is unknown here: {error}") from None
    for entry in described.get("CategoricalParameterRanges", ()):
        ranges[entry["Name"]] = CategoricalParameter([category_of(text) for text in entry["Values"]])
    return ranges


def _number(text: str) -> float:
    # Whole numbers stay so, because the same range planned again has the same texts.
    return int(text) if text.removeprefix("-").isdecimal() else float(text)


def category_of(text: str) -> str:
    """Return a value of a list as the user wrote it: in script mode it is a text in JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _completion(criteria: Mapping[str, Any]) -> TuningJobCompletionCriteriaConfig:
    converged = criteria.get("ConvergenceDetected", {}).get("CompleteOnConvergence")
    return TuningJobCompletionCriteriaConfig(
        max_number_of_training_jobs_not_improving=criteria.get("BestObjectiveNotImproving", {}).get(
            "MaxNumberOfTrainingJobsNotImproving"
        ),
        complete_on_convergence=None if converged is None else converged == "Enabled",
        target_objective_metric_value=criteria.get("TargetObjectiveMetricValue"),
    )


def _input(config: Any) -> dict[str, Any] | None:
    return config.to_input_req() or None


FIELDS = {
    "name": Member(_NAME),
    "strategy": Member(f"{CONFIG}.Strategy"),
    "hyperband": Member(
        f"{CONFIG}.StrategyConfig.HyperbandStrategyConfig",
        _input,
        lambda each: HyperbandStrategyConfig(each.get("MaxResource"), each.get("MinResource", 1)),
    ),
    "objective_type": Member(f"{CONFIG}.HyperParameterTuningJobObjective.Type"),
    "metric": Member(f"{CONFIG}.HyperParameterTuningJobObjective.MetricName"),
    "max_jobs": Member(f"{CONFIG}.ResourceLimits.MaxNumberOfTrainingJobs"),
    "max_parallel_jobs": Member(f"{CONFIG}.ResourceLimits.MaxParallelTrainingJobs"),
    "max_runtime_in_seconds": Member(f"{CONFIG}.ResourceLimits.MaxRuntimeInSeconds"),
    "ranges": Member(f"{CONFIG}.ParameterRanges", back=ranges_of),
    "early_stopping_type": Member(f"{CONFIG}.TrainingJobEarlyStoppingType"),
    "completion": Member(f"{CONFIG}.TuningJobCompletionCriteria", _input, _completion),
    "seed": Member(f"{CONFIG}.RandomSeed"),
    "warm_start_type": Member("WarmStartConfig.WarmStartType", lambda kind: kind.value, WarmStartTypes),
    "parents": Member(
        "WarmStartConfig.ParentHyperParameterTuningJobs",
        lambda names: [{_NAME: name} for name in sorted(names)] or None,
        lambda parents: tuple(parent[_NAME] for parent in parents),
    ),
}


def members_of(definition: TuningDefinition) -> dict[str, Any]:
    """Return name, settings and parents of a search as CreateHyperParameterTuningJob has them.

    >>> from herringbone.tuner.definition import TuningDefinition
    >>> members_of(TuningDefinition(name="a", metric="loss", ranges={}))["HyperParameterTuningJobName"]
    'a'
    """
    values = {name: getattr(definition, name) for name in definition.__struct_fields__}
    ranges = parameter_ranges(definition.ranges)
    return to_members({**values, "max_jobs": definition.job_limit, "ranges": ranges}, fields=FIELDS)


def definition_members(description: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a definition; one of several estimators has objective and ranges in its `trial`."""
    own = {"HyperParameterTuningJobObjective": "TuningObjective", "ParameterRanges": "HyperParameterRanges"}
    config = description[CONFIG] | {name: trial[other] for name, other in own.items() if trial.get(other)}
    members = take_options(copy.deepcopy({**description, CONFIG: config}), fields=FIELDS)
    return {"metric": "", "ranges": {}, **members}
