"""Build the whole CreateHyperParameterTuningJob request as a plain object, to print, compare and send. Pure.

The CreateTrainingJob request of a trial's plan holds all that a trial needs. `tuning_request` takes the job's name and
the tuned hyperparameters out of it, and puts the ranges and the settings of the search next to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from herringbone.aws.fields import tag_list
from herringbone.plan.options.members import MEMBERS
from herringbone.plan.plan import refuse
from herringbone.tuner.definition import RESOURCE_NAMES, TuningDefinition
from herringbone.tuner.fields import CONFIG, members_of, parameter_ranges
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.errors import OptionError

# The members of a CreateTrainingJob request that a trial of a tuning job has, too.
_TRIAL_MEMBERS = (
    "RoleArn",
    "InputDataConfig",
    "VpcConfig",
    "OutputDataConfig",
    "StoppingCondition",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "EnableManagedSpotTraining",
    "CheckpointConfig",
    "RetryStrategy",
    "Environment",
)
# Members that a trial has in another form, or the tuning job as a whole.
_OTHER_FORM = ("TrainingJobName", "AlgorithmSpecification", "HyperParameters", "ResourceConfig", "Tags")
_ALGORITHM_MEMBERS = ("TrainingImage", "TrainingInputMode", "MetricDefinitions")
# AWS's SDK sends this structure. It has no member for warm pools, groups of instances and training plans, so a trial
# with one of those gets ResourceConfig, SageMaker's other structure for the same thing.
_PLAIN_RESOURCES = {"InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId"}
_NO_MEMBER = "SageMaker's tuning jobs have no such setting for their trials; leave it out"
# By these two, AWS's SDK finds the class of an estimator when it attaches to a tuning job.
_CLASS_KEY, _MODULE_KEY = "sagemaker_estimator_class_name", "sagemaker_estimator_module"
_CLASSES = ("PyTorch", "TensorFlow", "MXNet")


class TuningPart(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one estimator: what is searched, and the CreateTrainingJob request of its plan.

    `name` is the DefinitionName of one of several estimators; None where there is one. `estimator` is the name of the
    estimator's class.
    """

    definition: TuningDefinition
    request: dict[str, Any]
    estimator: str = "Estimator"
    name: str | None = None

    @property
    def in_script_mode(self) -> bool:
        """True if the trials run a script; hyperparameters are then texts that contain JSON."""
        return Key.PROGRAM in self.request.get("HyperParameters", {})


class TuningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a tuning job that concern AWS alone.

    `tags` are those of the tuner. With `autotune`, SageMaker finds ranges for the hyperparameters that have none, but
    not for those of `keep_static`.
    """

    tags: tuple[dict[str, str], ...] | dict[str, str] | None = None
    autotune: bool = False
    keep_static: tuple[str, ...] = ()


def tuning_request(parts: Sequence[TuningPart], settings: TuningSettings | None = None) -> dict[str, Any]:
    """Return the CreateHyperParameterTuningJob request of a search.

    >>> tuning_request([TuningPart(definition=definition, request=plan.request)])["Strategy"]    # doctest: +SKIP
    'Bayesian'

    All parts have the same settings of the search; those of the first are used. Raises `UnsupportedError` for an option
    of the estimator that no trial can have, `OptionError` for tags that contradict each other.
    """
    settings = settings or TuningSettings()
    definition = parts[0].definition
    trials = [_trial_definition(part, settings) for part in parts]
    if definition.hyperband is not None and definition.hyperband.resource_name is not None:
        raise OptionError(
            "resource_name: SageMaker's Hyperband takes the epochs from the hyperparameter "
            f"{' or '.join(RESOURCE_NAMES)}; leave it out, and give the script's hyperparameter one of those names"
        )
    request = members_of(definition)
    config = request[CONFIG]
    # Without this member, a grid trains all combinations. The other strategies need it.
    if definition.max_jobs is None and definition.strategy == "Grid":
        del config["ResourceLimits"]["MaxNumberOfTrainingJobs"]
    if parts[0].name is None:
        config["ParameterRanges"] = _ranges(parts[0], settings)
        request["TrainingJobDefinition"] = trials[0]
    else:
        del config["HyperParameterTuningJobObjective"], config["ParameterRanges"]
        named = zip(parts, trials, strict=True)
        request["TrainingJobDefinitions"] = sorted(
            (_named_definition(part, trial, settings) for part, trial in named),
            key=lambda trial: str(trial["DefinitionName"]),
        )
    if tags := _tags(settings, parts):
        request["Tags"] = tags
    if settings.autotune:
        request["Autotune"] = {"Mode": "Enabled"}
    return request


def _ranges(part: TuningPart, settings: TuningSettings) -> dict[str, Any]:
    """Return ParameterRanges; with autotune, SageMaker finds the ranges around the hints."""
    ranges = parameter_ranges(part.definition.ranges, in_script_mode=part.in_script_mode)
    if settings.autotune:
        hints = {name: text for name, text in _static(part).items() if name in _autotuned(part, settings)}
        ranges["AutoParameters"] = [{"Name": name, "ValueHint": text} for name, text in hints.items()]
    return ranges


def _static(part: TuningPart) -> dict[str, str]:
    """Return the hyperparameters that all trials share."""
    texts: Mapping[str, str] = part.request.get("HyperParameters", {})
    return {name: text for name, text in texts.items() if name not in part.definition.ranges}


def _autotuned(part: TuningPart, settings: TuningSettings) -> Collection[str]:
    """Return the names of the user's hyperparameters for which SageMaker finds ranges.

    Those that steer the container are not among them: a trial without its program's name cannot start.
    """
    reserved = (*settings.keep_static, Key.MODEL_PARALLEL_PARAMETERS, "model_dir")
    return {name for name in _static(part) if not name.startswith(STEERING_PREFIX) and name not in reserved}


def _trial_definition(part: TuningPart, settings: TuningSettings) -> dict[str, Any]:
    """Return TrainingJobDefinition: the CreateTrainingJob request without the name and the tuned hyperparameters."""
    request = part.request
    algorithm = request["AlgorithmSpecification"]
    others = [name for name in request if name not in (*_TRIAL_MEMBERS, *_OTHER_FORM)]
    others += [f"AlgorithmSpecification.{name}" for name in algorithm if name not in _ALGORITHM_MEMBERS]
    refuse("a tuning job on sagemaker", {_option_of(name): _NO_MEMBER for name in others})
    static = _static(part)
    if settings.autotune:
        static = {name: text for name, text in static.items() if name not in _autotuned(part, settings)}
    if part.in_script_mode and part.estimator in _CLASSES:
        static[_CLASS_KEY] = json.dumps(part.estimator)
        static[_MODULE_KEY] = json.dumps(f"sagemaker.{part.estimator.lower()}.estimator")
    resources = request["ResourceConfig"]
    resources_name = "HyperParameterTuningResourceConfig" if resources.keys() <= _PLAIN_RESOURCES else "ResourceConfig"
    return {
        "AlgorithmSpecification": dict(algorithm),
        "StaticHyperParameters": static,
        resources_name: dict(resources),
        **{name: request[name] for name in _TRIAL_MEMBERS if name in request},
    }


def _option_of(member: str) -> str:
    options = [option for option, path in MEMBERS.items() if f"{path}.".startswith(f"{member}.")]
    return options[0] if options else f"extra_request, {member.rpartition('.')[2]}"


def _named_definition(part: TuningPart, trial: Mapping[str, Any], settings: TuningSettings) -> dict[str, Any]:
    return {
        **trial,
        "DefinitionName": part.name,
        "TuningObjective": members_of(part.definition)[CONFIG]["HyperParameterTuningJobObjective"],
        "HyperParameterRanges": _ranges(part, settings),
    }


def _tags(settings: TuningSettings, parts: Iterable[TuningPart]) -> list[dict[str, str]]:
    """Return the tags of the tuner and then those of the estimators; trials get the tags of their tuning job.

    Raises `OptionError` for a key with two values.
    """
    tags = tag_list(settings.tags)
    for part in parts:
        tags += [tag for tag in part.request.get("Tags", ()) if tag not in tags]
    keys = [tag["Key"] for tag in tags]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise OptionError(
            f"tags: {twice[0]!r} has different values in the tuner and the estimator; a tuning job and its trials "
            "share their tags, so keep one"
        )
    return tags
