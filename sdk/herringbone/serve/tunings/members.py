"""The members of a tuning job: those of its request, read, and those of its answers. Pure; times are in seconds.

request --> [1] the CreateTrainingJob request that all trials share: `training_description` of the ml.* backend
        --> [2] the definition of the search: `definition_of` of the ml.* backend, checked as our own tuner checks it
        --> [3] with a trial's values: the CreateTrainingJob request that DescribeTrainingJob shows
record, states and trials --> Describe..., List... and Search
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from herringbone.records.index import COMPLETED
from herringbone.serve.actions import CONFIG, NOT_CONVERGED, TRIAL
from herringbone.serve.calls import stored_request
from herringbone.serve.errors import invalid
from herringbone.serve.records import ServiceRecord
from herringbone.serve.settings import TUNING_JOB, Settings
from herringbone.serve.translate import refused
from herringbone.tuner.definition import RESOURCE_NAMES, TuningDefinition, check_local, define
from herringbone.tuner.fields import category_of
from herringbone.tuner.look import TuningLook, search_members, trial_members
from herringbone.tuner.service.description import definition_of, training_description, user_values
from herringbone.tuner.store import TrialRecord
from herringbone.tuner.strategies.autotune import autotuned
from herringbone_contract.constants import Key
from herringbone_contract.errors import UsageError
from herringbone_contract.masking import masked_hyperparameters

# SageMaker's limit of one tuning job that is no random search: ours counts for all strategies.
MAX_PARALLEL = 100
_REASON_CHARS = 1024
# Members that only a description has.
_NOT_LISTED = ("FailureReason", "BestTrainingJob", "OverallBestTrainingJob")


def check_complete(request: Mapping[str, Any]) -> None:
    """Raise `ApiError` (ValidationException) for a missing member that every search needs."""
    if TRIAL not in request:
        raise invalid(f"{TRIAL}: missing")
    config, trial = request[CONFIG], request[TRIAL]
    if "HyperParameterTuningJobObjective" not in config:
        raise invalid(f"{CONFIG}.HyperParameterTuningJobObjective: missing")
    if "ResourceConfig" not in trial and "HyperParameterTuningResourceConfig" not in trial:
        raise invalid(f"{TRIAL}: HyperParameterTuningResourceConfig is missing")
    if (parallel := config["ResourceLimits"]["MaxParallelTrainingJobs"]) > MAX_PARALLEL:
        raise invalid(f"{CONFIG}.ResourceLimits.MaxParallelTrainingJobs: {parallel}; at most {MAX_PARALLEL}")
    if config.get("ParameterRanges", {}).get("AutoParameters") and "Autotune" not in request:
        raise invalid(f"{CONFIG}.ParameterRanges.AutoParameters: give Autotune, with the mode Enabled")


def shared_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CreateTrainingJob request that all trials share, under the tuning job's name. Raises `ApiError`.

    >>> shared_request(request)["HyperParameters"]["sagemaker_program"]                   # doctest: +SKIP
    'train.py'
    """
    try:
        return training_description(request)
    except UsageError as error:
        raise refused(error) from None


def definition_for(request: Mapping[str, Any], seed: int) -> TuningDefinition:
    """Return the definition of the search, without the results of its parents. Raises `ApiError`.

    `seed` counts where the request has none: a search needs one, so that it can go on after a kill.
    """
    try:
        described = definition_of(request)
        ranges, static = described.ranges, described.static
        if "Autotune" in request:
            hints = request[CONFIG].get("ParameterRanges", {}).get("AutoParameters", ())
            made, _ = autotuned(user_values({entry["Name"]: entry["ValueHint"] for entry in hints}))
            ranges, static = {**made, **ranges}, {name: static[name] for name in static if name not in made}
        settings = {name: getattr(described, name) for name in described.__struct_fields__}
        seed = seed if described.seed is None else described.seed
        definition = define({**settings, "ranges": ranges, "static": static, "seed": seed})
        _check_supported(definition)
        check_local(definition)
    except UsageError as error:
        raise refused(error) from None
    return definition


def _check_supported(definition: TuningDefinition) -> None:
    """Raise `ApiError` for what our tuner refuses in words of its own classes."""
    if definition.completion is not None and definition.completion.complete_on_convergence:
        raise invalid(f"{CONFIG}.TuningJobCompletionCriteria.ConvergenceDetected: {NOT_CONVERGED}")
    if definition.strategy == "Hyperband" and definition.resource_name is None:
        raise invalid(
            f"{CONFIG}.Strategy: Hyperband changes how many epochs a trial trains; give "
            f"{TRIAL}.StaticHyperParameters one of {', '.join(RESOURCE_NAMES)}"
        )


def tuned_texts(definition: TuningDefinition, request: Mapping[str, Any], record: TrialRecord) -> dict[str, str]:
    """Return a trial's tuned hyperparameters as texts: of lists, the text that the request has.

    >>> tuned_texts(definition, request, record)                   # doctest: +SKIP
    {'lr': '0.01', 'optimizer': '"sgd"'}
    """
    lists = request[CONFIG].get("ParameterRanges", {}).get("CategoricalParameterRanges", ())
    listed = {entry["Name"]: {category_of(text): text for text in entry["Values"]} for entry in lists}
    texts = {name: listed.get(name, {}).get(str(value), str(value)) for name, value in record.values.items()}
    if record.resource is not None and definition.resource_name is not None:
        texts[definition.resource_name] = str(record.resource)
    return texts


def trial_request(request: Mapping[str, Any], definition: TuningDefinition, record: TrialRecord) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a trial, as DescribeTrainingJob shows it."""
    shared = shared_request(request)
    texts = {**shared["HyperParameters"], **tuned_texts(definition, request, record)}
    return {**shared, "TrainingJobName": record.job, "HyperParameters": texts}


def stored_tuning(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as it may lie on the disk: secret-sounding values are masked."""
    trial = stored_request(request[TRIAL])
    if "StaticHyperParameters" in trial:
        trial["StaticHyperParameters"] = masked_hyperparameters(trial["StaticHyperParameters"])
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**request, TRIAL: trial}))
    for entry in stored[CONFIG].get("ParameterRanges", {}).get("AutoParameters", ()):
        entry["ValueHint"] = masked_hyperparameters({entry["Name"]: entry["ValueHint"]})[entry["Name"]]
    return stored


@dataclass(frozen=True, slots=True)
class Look:
    """One tuning job at one moment: the service's record, and the search.

    `parents_trials` has the times at which the trials of its parents were created, by their names.
    """

    record: ServiceRecord
    search: TuningLook
    parents_trials: Mapping[str, float] = field(default_factory=dict)


def description(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the answer of DescribeHyperParameterTuningJob.

    >>> description(look, settings)["BestTrainingJob"]["TrainingJobName"]                  # doctest: +SKIP
    'digits-007'
    """
    record, search = look.record, look.search
    request = {name: value for name, value in record.request.items() if name != "Tags"}
    # SageMaker adds the objective to the hyperparameters that all trials share; its SDK reads it there.
    static = {**request[TRIAL].get("StaticHyperParameters", {}), Key.TUNING_METRIC: search.definition.metric}
    # The SDK sends the hosts as HyperParameterTuningResourceConfig, and its `attach` reads ResourceConfig.
    hosts = shared_request(request)["ResourceConfig"]
    found = search_members(search, lambda trial: trial_summary(look, trial, settings))
    reason = record.problem or found["FailureReason"]
    members = {
        **request,
        TRIAL: {**request[TRIAL], "StaticHyperParameters": static, "ResourceConfig": hosts},
        **found,
        **_listed(look, settings),
        "FailureReason": reason[:_REASON_CHARS] if reason else None,
        "ConsumedResources": {"RuntimeInSeconds": _seconds(search.trials)},
    }
    if (overall := found["OverallBestTrainingJob"]) is not None:
        # SageMaker's shape requires a time and a status. A trial that was deleted has no time any more.
        job = overall["TrainingJobName"]
        created = look.parents_trials.get(job, record.created)
        arn = settings.arn(record.region, job)
        members["OverallBestTrainingJob"] = {
            "TrainingJobArn": arn,
            "CreationTime": created,
            "TrainingJobStatus": COMPLETED,
            **overall,
        }
    return {name: value for name, value in members.items() if value is not None}


def summary(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListHyperParameterTuningJobs."""
    found = search_members(look.search, lambda trial: trial_summary(look, trial, settings))
    config = look.record.request[CONFIG]
    members = {
        **{name: value for name, value in found.items() if name not in _NOT_LISTED and value is not None},
        **{name: config[name] for name in ("Strategy", "ResourceLimits")},
    }
    return {**members, **_listed(look, settings)}


def _listed(look: Look, settings: Settings) -> dict[str, Any]:
    """Return the members that the service's record decides, of lists and descriptions."""
    record = look.record
    return {
        "HyperParameterTuningJobArn": settings.arn(record.region, record.name, TUNING_JOB),
        "CreationTime": record.created,
        "LastModifiedTime": max(record.created, record.modified, look.search.changed, look.search.ended or 0.0),
    }


def trial_summary(look: Look, trial: TrialRecord, settings: Settings) -> dict[str, Any]:
    """Return the members of one entry of ListTrainingJobsForHyperParameterTuningJob."""
    definition, record = look.search.definition, look.record
    members = {
        **trial_members(definition, trial),
        "TrainingJobArn": settings.arn(record.region, trial.job),
        "TunedHyperParameters": tuned_texts(definition, record.request, trial),
    }
    return members | ({"FailureReason": trial.failure[:_REASON_CHARS]} if trial.failure is not None else {})


def objective_value(entry: Mapping[str, Any]) -> float | None:
    """Return the objective of a trial's summary, None for one without."""
    metric = entry.get("FinalHyperParameterTuningJobObjectiveMetric")
    return None if metric is None else float(metric["Value"])


def _seconds(trials: Sequence[TrialRecord]) -> int:
    """Return the seconds of all trials that are over, from their proposals to their ends."""
    return round(sum(trial.ended - trial.proposed for trial in trials if trial.ended is not None))
