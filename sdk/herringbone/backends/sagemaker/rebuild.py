"""Rebuild the plan of a job that another machine or program submitted, from DescribeTrainingJob's answer. Pure.

`rebuild` removes the members that it understands from a copy of the answer, one by one. What remains in the end becomes
`extra_request`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from herringbone.aws.fields import take
from herringbone.backends.sagemaker.rendezvous import is_key_channel, user_environment
from herringbone.backends.sagemaker.request import CODE_CHANNEL, MODEL_TYPE
from herringbone.plan.arguments import Arguments, instance_groups
from herringbone.plan.inputs import Channel, FileSystemInput, TrainingInput
from herringbone.plan.options.members import fields_of, take_options
from herringbone.plan.options.typed import parse_options
from herringbone.plan.plan import WATCHED, JobPlan, lay_out_hosts
from herringbone.plan.source import SourceCode
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.distribution import Distribution, parse
from herringbone_contract.errors import DistributionError, HyperparameterError, UnsupportedError
from herringbone_contract.hyperparameters import carries_distribution, decode, decode_values

# Members that DescribeTrainingJob adds to those of the request.
DESCRIPTION_ONLY = frozenset(
    {
        "AutoMLJobArn",
        "BillableTimeInSeconds",
        "BillableTokenCount",
        "CreationTime",
        "DebugRuleEvaluationStatuses",
        "FailureReason",
        "FinalMetricDataList",
        "LabelingJobArn",
        "LastModifiedTime",
        "MlflowDetails",
        "ModelArtifacts",
        "OutputModelPackageArn",
        "ProfilerRuleEvaluationStatuses",
        "ProfilingStatus",
        "ProgressInfo",
        "ResponseMetadata",
        "SecondaryStatus",
        "SecondaryStatusTransitions",
        "TrainingEndTime",
        "TrainingJobArn",
        "TrainingJobName",
        "TrainingJobStatus",
        "TrainingStartTime",
        "TrainingTimeInSeconds",
        "TuningJobArn",
        "WarmPoolStatus",
    }
)
_HOSTS = {"instance_type": "InstanceType", "instance_count": "InstanceCount"}
# The hyperparameters that planning writes itself.
# Steering hyperparameters that carry an option.
_OPTION_KEYS = {Key.LOG_LEVEL: "container_log_level", **{key: name for name, key in WATCHED.items()}}
_STEERING_KEYS = (Key.SUBMIT_DIRECTORY, Key.PROGRAM, Key.JOB_NAME, Key.REGION, *_OPTION_KEYS)
# AWS's SDK names the estimator's class of a tuning job in its trials.
_CLASS_KEY = "sagemaker_estimator_class_name"
_Input = TypeVar("_Input", TrainingInput, FileSystemInput)
_KINDS = ("PyTorch", "TensorFlow", "MXNet")


def rebuild(
    description: Mapping[str, Any], tags: Sequence[Mapping[str, str]] = (), *, kind: str | None = None
) -> JobPlan:
    """Return the plan of a described job.

    >>> plan = rebuild(description)                                                      # doctest: +SKIP
    >>> PyTorch.of(request_of(plan)).plan().request                                        # doctest: +SKIP

    `tags` are the answer of ListTags. `kind` is the name of the estimator's class; None guesses it from the image.
    Planning that estimator again requests the same job, except for `SessionChainingConfig`, which SageMaker does not
    describe. Raises `UnsupportedError` for a job without hosts.
    """
    # A deep copy, because `take` removes members from nested objects, and the caller's answer must stay complete.
    rest = {name: copy.deepcopy(value) for name, value in description.items() if name not in DESCRIPTION_ONLY}
    hyperparameters: dict[str, str] = take(rest, "HyperParameters") or {}
    # SageMaker adds this one to the trials of a tuning job. The estimator that is rebuilt trains one job.
    hyperparameters.pop(Key.TUNING_METRIC, None)
    image = take(rest, "AlgorithmSpecification", "TrainingImage")
    options = take_options(rest)
    hosts = {name: take(rest, "ResourceConfig", member) for name, member in _HOSTS.items()}
    if "instance_groups" in options:
        # SageMaker describes these two members next to groups, which have types of their own.
        hosts = dict.fromkeys(hosts)
    elif not all(hosts.values()):
        raise UnsupportedError("a job without hosts of its own, such as a serverless job, has no estimator here")
    channels, code = _channels(take(rest, "InputDataConfig") or [], options)
    if "environment" in options:
        # Planning adds the variables of the rendezvous again. The channels above still needed them.
        options["environment"] = user_environment(options["environment"])
    source = _source(hyperparameters, code, options)
    if tags:
        options["tags"] = tuple(dict(tag) for tag in tags)
    if remainder := _without_empty(rest):
        options["extra_request"] = remainder
    distribution = _distribution(hyperparameters)
    parsed = parse_options(options)
    named_kind = decode_values({_CLASS_KEY: hyperparameters.get(_CLASS_KEY, "")})[_CLASS_KEY]
    kind = kind or (named_kind if named_kind in _KINDS else _kind(str(image)))
    return JobPlan(
        job_name=description["TrainingJobName"],
        backend="sagemaker",
        estimator=kind,
        distribution=distribution,
        hosts=lay_out_hosts(instance_groups(parsed, **hosts), distribution),
        source=source,
        channels=channels,
        hyperparameters=hyperparameters,
        options=parsed,
        # No path of this plan is on this machine, so any folder will do.
        folder="/",
        arguments=Arguments(
            image_uri=image,
            **hosts,
            **_settings(hyperparameters, distribution, kind, source),
        ),
    )


def _without_empty(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the remaining members, without the objects that `take` has emptied."""
    members = {name: _without_empty(value) if isinstance(value, Mapping) else value for name, value in rest.items()}
    return {name: value for name, value in members.items() if value not in ({}, "", None)}


def _channels(
    descriptions: Sequence[dict[str, Any]], options: dict[str, Any]
) -> tuple[tuple[Channel, ...], str | None]:
    """Return all channels, the model's last, and the URI of code that arrives as a channel.

    Stores the model's URI and channel name in `options`.
    """
    channels: list[Channel] = []
    model: list[Channel] = []
    code = None
    for channel in descriptions:
        name = channel["ChannelName"]
        uri = channel["DataSource"].get("S3DataSource", {}).get("S3Uri")
        if name == CODE_CHANNEL and options.get("enable_network_isolation"):
            code = uri
        elif is_key_channel(name, options.get("environment", {})):
            # Planning adds a channel with a new key.
            continue
        elif channel.get("ContentType") == MODEL_TYPE and channel.get("InputMode") == "File":
            options["model_uri"], options["model_channel_name"] = uri, name
            model = [Channel(name=name, input=TrainingInput(uri))]
        else:
            channels.append(_channel(channel))
    return (*channels, *model), code


def _channel(channel: dict[str, Any]) -> Channel:
    name = channel["ChannelName"]
    if channel["DataSource"].get("FileSystemDataSource") is None:
        return Channel(name=name, input=_taken(channel, TrainingInput))
    folder = _taken(channel, FileSystemInput)
    return Channel(name=name, input=TrainingInput(folder.address), file_system=folder)


def _taken(channel: dict[str, Any], kind: type[_Input]) -> _Input:
    taken = take_options(channel, fields=fields_of(kind))
    # Not checked: the job exists, and another program may have used values that are newer than these types.
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in taken.items()}
    return kind(**values)


def _source(hyperparameters: Mapping[str, str], code: str | None, options: dict[str, Any]) -> SourceCode | None:
    steering = decode_values({name: text for name, text in hyperparameters.items() if name in _STEERING_KEYS})
    # Where code arrives as a channel, the hyperparameter holds a path in the container, and the channel the S3 URI.
    program, address = steering.get(Key.PROGRAM), code or steering.get(Key.SUBMIT_DIRECTORY)
    if program is None or not str(address).startswith("s3://"):
        return None
    options.update({option: steering[key] for key, option in _OPTION_KEYS.items() if key in steering})
    return SourceCode(entry_point=program, archive=address)


def _distribution(hyperparameters: Mapping[str, str]) -> Distribution:
    """Return the distribution that the hyperparameters encode; an empty one where they cannot be decoded."""
    if carries_distribution(hyperparameters):
        try:
            return decode(hyperparameters)
        except (DistributionError, HyperparameterError):
            # Another program may use the same names with values that have no meaning here.
            pass
    return parse(None)


def _settings(
    hyperparameters: Mapping[str, str], distribution: Distribution, kind: str, source: SourceCode | None
) -> dict[str, Any]:
    """Return the arguments of the code, `hyperparameters`, `distribution` and, for TensorFlow, `model_dir`."""
    distribution_dict = msgspec.to_builtins(distribution)
    # Planning writes the steering names again. Without a script and a distribution they belong to the image's program.
    drop_steering = source is not None or bool(distribution_dict)
    user_texts = {
        name: text
        for name, text in hyperparameters.items()
        if not (drop_steering and name.startswith(STEERING_PREFIX))
        and not (distribution_dict and name == Key.MODEL_PARALLEL_PARAMETERS)
    }
    values = decode_values(user_texts)
    settings: dict[str, Any] = {} if source is None else dict(source.arguments)
    if kind == "TensorFlow":
        # False keeps the estimator from adding a `model_dir` that the job did not have.
        settings["model_dir"] = values.pop("model_dir", False)
    if values:
        settings["hyperparameters"] = values
    if distribution_dict:
        settings["distribution"] = distribution_dict
    return settings


def _kind(image: str) -> str:
    """Guess the estimator's class from the image's name; `Estimator` runs any script."""
    name = image.rpartition("/")[2].lower()
    # Names of Hugging Face's images have the framework in them as well.
    kinds = {
        "huggingface": "HuggingFace",
        "pytorch": "PyTorch",
        "tensorflow": "TensorFlow",
        "mxnet": "MXNet",
        "scikit-learn": "SKLearn",
        "sklearn": "SKLearn",
        "xgboost": "XGBoost",
    }
    return next((kind for framework, kind in kinds.items() if framework in name), "Estimator")
