"""From what DescribeTrainingJob answers back to a plan: of a job that this machine never saw, whoever sent it. Pure.

Members are taken out of the answer one by one; what is left at the end, and is the request's, is `extra_request`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herringbone.backends.sagemaker.rendezvous import is_ours, without
from herringbone.backends.sagemaker.request import CODE_CHANNEL, MODEL_TYPE
from herringbone.code.source import SourceCode
from herringbone.estimators.inputs import Channel, FileSystemInput, ShuffleConfig, TrainingInput
from herringbone.estimators.options import InstanceGroup, Options, parse_options
from herringbone.planning.plan import JobPlan, lay_out_hosts
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.distribution import Distribution, parse
from herringbone_contract.errors import DistributionError, HyperparameterError, UnsupportedError
from herringbone_contract.hyperparameters import carries_distribution, decode, decode_values
from herringbone_contract.resources import HOMOGENEOUS_GROUP

# Where each option stands in the request.
_PLACES = {
    "role": ("RoleArn",),
    "input_mode": ("AlgorithmSpecification", "TrainingInputMode"),
    "metric_definitions": ("AlgorithmSpecification", "MetricDefinitions"),
    "container_entry_point": ("AlgorithmSpecification", "ContainerEntrypoint"),
    "container_arguments": ("AlgorithmSpecification", "ContainerArguments"),
    "training_repository_access_mode": (
        "AlgorithmSpecification",
        "TrainingImageConfig",
        "TrainingRepositoryAccessMode",
    ),
    "training_repository_credentials_provider_arn": (
        "AlgorithmSpecification",
        "TrainingImageConfig",
        "TrainingRepositoryAuthConfig",
        "TrainingRepositoryCredentialsProviderArn",
    ),
    "output_path": ("OutputDataConfig", "S3OutputPath"),
    "output_kms_key": ("OutputDataConfig", "KmsKeyId"),
    "volume_size": ("ResourceConfig", "VolumeSizeInGB"),
    "volume_kms_key": ("ResourceConfig", "VolumeKmsKeyId"),
    "keep_alive_period_in_seconds": ("ResourceConfig", "KeepAlivePeriodInSeconds"),
    "training_plan": ("ResourceConfig", "TrainingPlanArn"),
    "instance_placement_config": ("ResourceConfig", "InstancePlacementConfig"),
    "max_run": ("StoppingCondition", "MaxRuntimeInSeconds"),
    "max_wait": ("StoppingCondition", "MaxWaitTimeInSeconds"),
    "max_retry_attempts": ("RetryStrategy", "MaximumRetryAttempts"),
    "environment": ("Environment",),
    "checkpoint_s3_uri": ("CheckpointConfig", "S3Uri"),
    "checkpoint_local_path": ("CheckpointConfig", "LocalPath"),
    "use_spot_instances": ("EnableManagedSpotTraining",),
    "enable_network_isolation": ("EnableNetworkIsolation",),
    "encrypt_inter_container_traffic": ("EnableInterContainerTrafficEncryption",),
    "subnets": ("VpcConfig", "Subnets"),
    "security_group_ids": ("VpcConfig", "SecurityGroupIds"),
    "enable_infra_check": ("InfraCheckConfig", "EnableInfraCheck"),
    "enable_remote_debug": ("RemoteDebugConfig", "EnableRemoteDebug"),
}

# What DescribeTrainingJob tells beside the request.
ANSWERED = frozenset(
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
# The hyperparameters that planning writes anew.
_WRITTEN = (Key.SUBMIT_DIRECTORY, Key.PROGRAM, Key.LOG_LEVEL, Key.JOB_NAME, Key.REGION)


def rebuild(
    described: Mapping[str, Any], tags: Sequence[Mapping[str, str]] = (), *, kind: str | None = None
) -> JobPlan:
    """Return the plan of a described job; `tags` are ListTags', `kind` the estimator's class, else guessed.

    >>> plan = rebuild(described)                                                        # doctest: +SKIP
    >>> PyTorch(**plan.arguments, **given_options(plan.options)).plan(...).request       # doctest: +SKIP

    Planning that estimator again asks for the same job. `SessionChainingConfig` is all that the service does not tell.
    Raises `UnsupportedError` for a job without hosts.
    """
    rest = {name: copy.deepcopy(value) for name, value in described.items() if name not in ANSWERED}
    hyperparameters: dict[str, str] = _take(rest, "HyperParameters") or {}
    image = _take(rest, "AlgorithmSpecification", "TrainingImage")
    options = {name: value for name, place in _PLACES.items() if (value := _take(rest, *place)) is not None}
    if _take(rest, "OutputDataConfig", "CompressionType") == "NONE":
        options["disable_output_compression"] = True
    groups = _groups(rest)
    if groups[0].instance_group_name != HOMOGENEOUS_GROUP:
        options["instance_groups"] = groups
    channels, code = _channels(_take(rest, "InputDataConfig") or [], options)
    if "environment" in options:
        options["environment"] = without(options["environment"])
    source = _source(hyperparameters, code, options)
    if tags:
        options["tags"] = tuple(dict(tag) for tag in tags)
    if left := _pruned(rest):
        options["extra_request"] = left
    distribution = _distribution(hyperparameters)
    parsed = parse_options(options)
    hosts = lay_out_hosts(groups, distribution)
    kind = kind or _kind(str(image))
    return JobPlan(
        job_name=described["TrainingJobName"],
        backend="sagemaker",
        estimator=kind,
        distribution=distribution,
        hosts=hosts,
        source=source,
        channels=channels,
        hyperparameters=hyperparameters,
        options=parsed,
        folder="/",
        arguments={
            **({} if source is None else source.arguments),
            **({} if image is None else {"image_uri": image}),
            **_hosts_arguments(groups, parsed),
            **_settings(hyperparameters, distribution, kind, in_script_mode=source is not None),
        },
    )


def _take(rest: dict[str, Any], *place: str) -> Any:
    """Take a member out; None where it is not, or where the service shows an empty one for silence."""
    for name in place[:-1]:
        rest = rest.get(name) or {}
    value = rest.pop(place[-1], None)
    return None if value in ("", [], {}) else value


def _pruned(rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is left, without the objects that were emptied."""
    left = {name: _pruned(value) if isinstance(value, Mapping) else value for name, value in rest.items()}
    return {name: value for name, value in left.items() if value not in ({}, "", None)}


def _groups(rest: dict[str, Any]) -> tuple[InstanceGroup, ...]:
    instance_type = _take(rest, "ResourceConfig", "InstanceType")
    count = _take(rest, "ResourceConfig", "InstanceCount")
    given = _take(rest, "ResourceConfig", "InstanceGroups") or [
        {"InstanceGroupName": HOMOGENEOUS_GROUP, "InstanceType": instance_type, "InstanceCount": count}
    ]
    if not all(group["InstanceType"] and group["InstanceCount"] for group in given):
        raise UnsupportedError("a job without hosts of its own, as serverless ones are, has no estimator here")
    return tuple(
        InstanceGroup(group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]) for group in given
    )


def _hosts_arguments(groups: Sequence[InstanceGroup], options: Options) -> dict[str, Any]:
    if options.instance_groups is not None:
        return {}
    return {"instance_type": groups[0].instance_type, "instance_count": groups[0].instance_count}


def _channels(given: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> tuple[tuple[Channel, ...], str | None]:
    """Return all channels, the model's last, and the address of code that came as one; sets the model's options."""
    channels: list[Channel] = []
    model: list[Channel] = []
    code = None
    for channel in given:
        name = channel["ChannelName"]
        uri = channel["DataSource"].get("S3DataSource", {}).get("S3Uri")
        if name == CODE_CHANNEL and options.get("enable_network_isolation"):
            code = uri
        elif is_ours(name, options.get("environment", {})):
            continue  # planning makes it anew
        elif channel.get("ContentType") == MODEL_TYPE and channel.get("InputMode") == "File":
            options["model_uri"], options["model_channel_name"] = uri, name
            model = [Channel(name=name, input=TrainingInput(uri))]
        else:
            channels.append(_channel(channel))
    return (*channels, *model), code


def _channel(channel: Mapping[str, Any]) -> Channel:
    name = channel["ChannelName"]
    mounted = channel["DataSource"].get("FileSystemDataSource")
    if mounted is None:
        return Channel(name=name, input=_input(channel))
    folder = FileSystemInput(
        mounted["FileSystemId"],
        mounted["FileSystemType"],
        mounted["DirectoryPath"],
        mounted["FileSystemAccessMode"],
        channel.get("ContentType"),
    )
    return Channel(name=name, input=TrainingInput(folder.address), file_system=folder)


def _input(channel: Mapping[str, Any]) -> TrainingInput:
    source = channel["DataSource"]["S3DataSource"]
    shuffle = channel.get("ShuffleConfig")
    # The service shows "None" where nothing was given.
    said = {name: channel.get(name) for name in ("CompressionType", "RecordWrapperType")}
    compression, wrapping = (None if value == "None" else value for value in said.values())
    return TrainingInput(
        source["S3Uri"],
        distribution=source.get("S3DataDistributionType"),
        compression=compression,
        content_type=channel.get("ContentType"),
        record_wrapping=wrapping,
        s3_data_type=source.get("S3DataType", "S3Prefix"),
        instance_groups=_tuple(source.get("InstanceGroupNames")),
        input_mode=channel.get("InputMode"),
        attribute_names=_tuple(source.get("AttributeNames")),
        shuffle_config=None if shuffle is None else ShuffleConfig(shuffle["Seed"]),
    )


def _source(hyperparameters: Mapping[str, str], code: str | None, options: dict[str, Any]) -> SourceCode | None:
    steering = decode_values({name: text for name, text in hyperparameters.items() if name in _WRITTEN})
    program, address = steering.get(Key.PROGRAM), code or steering.get(Key.SUBMIT_DIRECTORY)
    if program is None or not str(address).startswith("s3://"):
        return None
    if Key.LOG_LEVEL in steering:
        options["container_log_level"] = steering[Key.LOG_LEVEL]
    return SourceCode(entry_point=program, archive=address)


def _distribution(hyperparameters: Mapping[str, str]) -> Distribution:
    """Return the distribution that the hyperparameters carry; none where they mean something that we do not know."""
    if carries_distribution(hyperparameters):
        try:
            return decode(hyperparameters)
        except (DistributionError, HyperparameterError):
            pass
    return parse(None)


def _settings(
    hyperparameters: Mapping[str, str], distribution: Distribution, kind: str, *, in_script_mode: bool
) -> dict[str, Any]:
    """Return the arguments `hyperparameters`, `distribution` and, of TensorFlow, `model_dir`."""
    carried = msgspec.to_builtins(distribution)
    steers = in_script_mode or bool(carried)
    own = {
        name: text
        for name, text in hyperparameters.items()
        if not (steers and name.startswith(STEERING_PREFIX)) and not (carried and name == Key.MODEL_PARALLEL_PARAMETERS)
    }
    values = decode_values(own)
    settings: dict[str, Any] = {}
    if kind == "TensorFlow":
        settings["model_dir"] = values.pop("model_dir", False)
    if values:
        settings["hyperparameters"] = values
    if carried:
        settings["distribution"] = carried
    return settings


def _kind(image: str) -> str:
    """Guess the estimator by the image's name; any script runs under the general one."""
    name = image.rpartition("/")[2].lower()
    known = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
    return next((kind for framework, kind in known.items() if framework in name), "Estimator")


def _tuple(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return tuple(values) if values else None
