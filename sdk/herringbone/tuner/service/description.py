"""Read what SageMaker describes about a tuning job: as its definition, as trials, and as JSON. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from herringbone.backends.sagemaker.description import plain, seconds_since_1970
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.fields import CONFIG, category_of, definition_members
from herringbone.tuner.parameters import AnyRange, CategoricalParameter, ContinuousParameter
from herringbone.tuner.store import TrialRecord
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.hyperparameters import decode_values
from herringbone_contract.masking import masked_hyperparameters

# Members that TrainingJobDefinition has under another name than a training job's description.
_RESOURCES = "HyperParameterTuningResourceConfig"
_DEFINITION_ONLY = (
    "DefinitionName",
    "TuningObjective",
    "HyperParameterRanges",
    "StaticHyperParameters",
    _RESOURCES,
)
# SageMaker names a trial "digits-007-1a2b3c4d", by its number from 1 on and a hash.
_NUMBER = re.compile(r".*-(\d{3,})-[0-9a-f]{8}")


def plain_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of a tuning job as JSON values, with times in ISO format and secrets masked."""
    members = dict(description)
    if "TrainingJobDefinition" in members:
        members["TrainingJobDefinition"] = _masked(members["TrainingJobDefinition"])
    if "TrainingJobDefinitions" in members:
        members["TrainingJobDefinitions"] = [_masked(trial) for trial in members["TrainingJobDefinitions"]]
    return plain(members)


def _masked(trial: Mapping[str, Any]) -> dict[str, Any]:
    members = plain(trial)
    if "StaticHyperParameters" in members:
        members["StaticHyperParameters"] = masked_hyperparameters(members["StaticHyperParameters"])
    return members


def trial_definitions(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the definitions of the job's trials: one, or one for each estimator."""
    one = description.get("TrainingJobDefinition")
    return [dict(one)] if one else [dict(trial) for trial in description.get("TrainingJobDefinitions", ())]


def definition_of(description: Mapping[str, Any]) -> TuningDefinition:
    """Return the definition of a described tuning job; of one with several estimators, all of their ranges.

    >>> definition_of(description).strategy                  # doctest: +SKIP
    'Bayesian'

    Raises `UnsupportedError` where ranges are unknown here.
    """
    definitions = list(definitions_of(description).values())
    ranges = {name: values for one in reversed(definitions) for name, values in one.ranges.items()}
    return definitions[0] if len(definitions) == 1 else msgspec.structs.replace(definitions[0], ranges=ranges)


def definitions_of(description: Mapping[str, Any]) -> dict[str | None, TuningDefinition]:
    """Return the definition of each estimator by its name, which is None where there is one without a name."""
    return {trial.get("DefinitionName"): _definition(description, trial) for trial in trial_definitions(description)}


def _definition(description: Mapping[str, Any], trial: Mapping[str, Any]) -> TuningDefinition:
    # Not by `define`: SageMaker has accepted the job, and its rules may differ from those of this release.
    static = user_values(_shared_texts(description, trial))
    return TuningDefinition(**definition_members(description, trial), static=static)


def _shared_texts(description: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters that the estimator gave to all trials, those for autotune included."""
    config = description[CONFIG]
    ranges = trial.get("HyperParameterRanges") or config.get("ParameterRanges") or {}
    examples = {entry["Name"]: entry["ValueHint"] for entry in ranges.get("AutoParameters", ())}
    return {**trial.get("StaticHyperParameters", {}), **examples}


def kept_static(description: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of the user's hyperparameters for which autotune finds no range; None without autotune."""
    if "Autotune" not in description:
        return None
    return tuple(user_values(trial_definitions(description)[0].get("StaticHyperParameters", {})))


def user_values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's hyperparameters among a job's, decoded: without those that steer the container."""
    return decode_values(
        {
            name: text
            for name, text in texts.items()
            if not name.startswith(STEERING_PREFIX) and name not in (Key.TUNING_METRIC, Key.MODEL_PARALLEL_PARAMETERS)
        }
    )


def trial_records(summaries: Iterable[Mapping[str, Any]], description: Mapping[str, Any]) -> list[TrialRecord]:
    """Return the trials of SageMaker's summaries, in the order of their numbers.

    >>> trial_records(summaries, description)[0].objective        # doctest: +SKIP
    0.93
    """
    definitions = definitions_of(description)
    only = next(iter(definitions.values()))
    stops = _stops_trials(description)
    return [
        _trial_record(
            number,
            summary,
            definitions.get(summary.get("TrainingJobDefinitionName"), only),
            stopped_by_search=stops,
        )
        for number, summary in enumerate(sorted(summaries, key=_place))
    ]


def _stops_trials(description: Mapping[str, Any]) -> bool:
    """Return whether the search itself stops trials, so that a stopped one of a completed search is its work."""
    config = description[CONFIG]
    stops = config.get("TrainingJobEarlyStoppingType") == "Auto" or config["Strategy"] == "Hyperband"
    return stops and description["HyperParameterTuningJobStatus"] not in ("Stopping", "Stopped")


def _place(summary: Mapping[str, Any]) -> tuple[int, float, str]:
    match = _NUMBER.fullmatch(summary["TrainingJobName"])
    created = seconds_since_1970(summary["CreationTime"]) or 0.0
    return (0 if match is None else int(match[1])), created, summary["TrainingJobName"]


def _trial_record(
    number: int, summary: Mapping[str, Any], definition: TuningDefinition, *, stopped_by_search: bool
) -> TrialRecord:
    status = summary["TrainingJobStatus"]
    metric = summary.get("FinalHyperParameterTuningJobObjectiveMetric") or {}
    objective = None if metric.get("Value") is None else float(metric["Value"])
    values = {name: _value(text, definition.ranges.get(name)) for name, text in _tuned(summary).items()}
    resource = values.pop(definition.resource_name, None) if definition.resource_name else None
    return TrialRecord(
        number=number,
        job=summary["TrainingJobName"],
        values=values,
        resource=resource if isinstance(resource, int) else None,
        proposed=seconds_since_1970(summary["CreationTime"]) or 0.0,
        started=seconds_since_1970(summary.get("TrainingStartTime")),
        status=status,
        # SageMaker keeps the last value only.
        objective=None if status == "Failed" else objective,
        curve=() if objective is None else (objective,),
        ended=seconds_since_1970(summary.get("TrainingEndTime")),
        failure=summary.get("FailureReason"),
        early_stopped=stopped_by_search and status == "Stopped" and objective is not None,
    )


def _tuned(summary: Mapping[str, Any]) -> Mapping[str, str]:
    tuned: Mapping[str, str] = summary.get("TunedHyperParameters") or {}
    return tuned


def _value(text: str, values: AnyRange | None) -> Any:
    """Return a tuned value in its range's type; of autotuned ones, whose range nobody described, by their form."""
    if values is None:
        return decode_values({"": text})[""]
    if isinstance(values, CategoricalParameter):
        return category_of(text)
    try:
        # SageMaker may write a whole number as "3.0".
        return float(text) if isinstance(values, ContinuousParameter) else int(float(text))
    except ValueError:
        return text


def training_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial as DescribeTrainingJob would describe it, without tuned hyperparameters, for `rebuild`.

    Raises `UnsupportedError` for a tuning job of several estimators, or several instance types.
    """
    trials = trial_definitions(description)
    if len(trials) != 1:
        names = ", ".join(str(trial.get("DefinitionName")) for trial in trials)
        raise UnsupportedError(
            f"tuning job {description['HyperParameterTuningJobName']} has several estimators: {names}. Each trial has "
            "one: Estimator.attach(TRAINING_JOB_NAME) rebuilds it; `herringbone tune show` lists the trials"
        )
    trial = trials[0]
    members = {name: value for name, value in trial.items() if name not in _DEFINITION_ONLY}
    return {
        **members,
        "TrainingJobName": description["HyperParameterTuningJobName"],
        "HyperParameters": _shared_texts(description, trial),
        "ResourceConfig": trial.get("ResourceConfig") or _resources(trial),
    }


def _resources(trial: Mapping[str, Any]) -> dict[str, Any]:
    resources = dict(trial.get(_RESOURCES) or {})
    if resources.get("InstanceConfigs") or "InstanceType" not in resources:
        raise UnsupportedError(
            "the tuning job chooses among several instance types, which an estimator here does not have"
        )
    return {name: value for name, value in resources.items() if name not in ("InstanceConfigs", "AllocationStrategy")}
