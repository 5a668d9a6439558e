"""Make Herringbone's request for a case of cases.json, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.sagemaker.planning import planned

import herringbone
from herringbone.backends.sagemaker.request import AccountNames, training_job_request
from herringbone.plan.options.typed import parse_options
from herringbone.tuner.configs import HyperbandStrategyConfig, TuningJobCompletionCriteriaConfig, WarmStartTypes
from herringbone.tuner.definition import TuningDefinition, define
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone.tuner.service.request import TuningPart, TuningSettings, tuning_request
from herringbone.tuner.trial_plan import with_metrics

CASES = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))
NAMES = AccountNames("us-west-2", "bucket", "arn:aws:iam::123456789012:role/train", code_hash="abc")
RANGES: dict[str, Any] = {
    "continuous": ContinuousParameter,
    "integer": IntegerParameter,
    "categorical": CategoricalParameter,
}


def own_request(case: dict[str, Any]) -> dict[str, Any]:
    tuner = case.get("tuner", {})
    settings = TuningSettings(
        tags=tuner.get("tags"),
        autotune=tuner.get("autotune", False),
        keep_static=tuple(tuner.get("hyperparameters_to_keep_static", ())),
    )
    return tuning_request(parts_of(case), settings)


def parts_of(case: dict[str, Any]) -> list[TuningPart]:
    tuner, inputs = case.get("tuner", {}), case.get("inputs")
    if "estimators" not in case:
        metrics = tuner.get("metric_definitions")
        definition = definition_of(tuner, tuner["objective_metric_name"], case["ranges"])
        return [part(case, definition, metrics, inputs, name=tuner.get("estimator_name"))]
    return [
        part(
            entry,
            definition_of(tuner, tuner["objective_metric_name_dict"][name], case["ranges"][name]),
            tuner["metric_definitions_dict"].get(name),
            inputs[name],
            name=name,
        )
        for name, entry in case["estimators"].items()
    ]


def part(
    entry: dict[str, Any], definition: TuningDefinition, metrics: Any, inputs: Any, *, name: str | None = None
) -> TuningPart:
    # Without an explicit None, `planned` would add its own script.
    arguments = {"entry_point": None, **entry["arguments"]}
    given, own = (
        parse_options({"metric_definitions": definitions}).metric_definitions
        for definitions in (metrics, arguments.get("metric_definitions"))
    )
    arguments["metric_definitions"] = [{"Name": one.name, "Regex": one.regex} for one in with_metrics(given, own)]
    plan = planned(inputs, kind=getattr(herringbone, entry["estimator"]), **arguments)
    return TuningPart(
        definition=definition, request=training_job_request(plan, NAMES), estimator=entry["estimator"], name=name
    )


def definition_of(tuner: dict[str, Any], metric: str, ranges: dict[str, Any]) -> TuningDefinition:
    same = ("objective_type", "strategy", "max_jobs", "max_parallel_jobs", "max_runtime_in_seconds")
    settings = {name: tuner[name] for name in (*same, "early_stopping_type") if name in tuner}
    settings |= {"name": "digits-1", "metric": metric}
    settings["ranges"] = {name: RANGES[kind](*arguments) for name, (kind, *arguments) in ranges.items()}
    if "random_seed" in tuner:
        settings["seed"] = tuner["random_seed"]
    if "strategy_config" in tuner:
        settings["hyperband"] = HyperbandStrategyConfig(**tuner["strategy_config"])
    if "completion_criteria_config" in tuner:
        settings["completion"] = TuningJobCompletionCriteriaConfig(**tuner["completion_criteria_config"])
    if "warm_start_config" in tuner:
        kind, parents = tuner["warm_start_config"]
        settings |= {"warm_start_type": WarmStartTypes(kind), "parents": tuple(parents)}
    return define(settings, without_ranges=tuner.get("autotune", False))
