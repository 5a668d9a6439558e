"""The options of an estimator and the members of CreateTrainingJob that carry them: one table for both ways. Pure.

options -- to_members --> CreateTrainingJob
DescribeTrainingJob, or a call of the service -- take_options --> options, and the members that are left
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def tag_list(tags: Any) -> list[dict[str, str]]:
    """Return tags as SageMaker takes them; [] for None.

    >>> tag_list({"team": "vision"})
    [{'Key': 'team', 'Value': 'vision'}]
    """
    if isinstance(tags, Mapping):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return [dict(tag) for tag in tags or ()]


def _same(value: Any) -> Any:
    return value


def _renamed(names: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return a function that gives the keys of an object, or of each object of a list, other names."""

    def rename(value: Any) -> Any:
        if isinstance(value, list):
            return [rename(each) for each in value]
        return {names.get(key, key): each for key, each in value.items() if each is not None}

    return rename


def _structs(**names: str) -> dict[str, Callable[[Any], Any]]:
    return {"to": _renamed(names), "back": _renamed({member: name for name, member in names.items()})}


@dataclass(frozen=True, slots=True)
class Field:
    """An option and its member, and how a plain value of the one becomes one of the other; None leaves it out."""

    option: str
    member: str
    to: Callable[[Any], Any] = _same
    back: Callable[[Any], Any] = _same


_ALGORITHM, _IMAGE = "AlgorithmSpecification", "AlgorithmSpecification.TrainingImageConfig"
FIELDS = (
    Field("role", "RoleArn"),
    Field("input_mode", f"{_ALGORITHM}.TrainingInputMode"),
    Field("metric_definitions", f"{_ALGORITHM}.MetricDefinitions"),
    Field("container_entry_point", f"{_ALGORITHM}.ContainerEntrypoint"),
    Field("container_arguments", f"{_ALGORITHM}.ContainerArguments"),
    Field("training_repository_access_mode", f"{_IMAGE}.TrainingRepositoryAccessMode"),
    Field(
        "training_repository_credentials_provider_arn",
        f"{_IMAGE}.TrainingRepositoryAuthConfig.TrainingRepositoryCredentialsProviderArn",
    ),
    Field("output_path", "OutputDataConfig.S3OutputPath"),
    Field("output_kms_key", "OutputDataConfig.KmsKeyId"),
    Field(
        "disable_output_compression",
        "OutputDataConfig.CompressionType",
        to=lambda _: "NONE",
        # Taken in any case: otherwise the default, GZIP, would count as a member that no option has.
        back=lambda text: text == "NONE" or None,
    ),
    Field(
        "instance_groups",
        "ResourceConfig.InstanceGroups",
        **_structs(
            instance_group_name="InstanceGroupName", instance_type="InstanceType", instance_count="InstanceCount"
        ),
    ),
    Field("volume_size", "ResourceConfig.VolumeSizeInGB"),
    Field("volume_kms_key", "ResourceConfig.VolumeKmsKeyId"),
    Field("keep_alive_period_in_seconds", "ResourceConfig.KeepAlivePeriodInSeconds"),
    Field("training_plan", "ResourceConfig.TrainingPlanArn"),
    Field("instance_placement_config", "ResourceConfig.InstancePlacementConfig"),
    Field("max_run", "StoppingCondition.MaxRuntimeInSeconds"),
    Field("max_wait", "StoppingCondition.MaxWaitTimeInSeconds"),
    Field("max_retry_attempts", "RetryStrategy.MaximumRetryAttempts"),
    Field("environment", "Environment"),
    # SageMaker describes no tags; ListTags has them.
    Field("tags", "Tags", to=lambda tags: tag_list(tags) or None),
    Field("checkpoint_s3_uri", "CheckpointConfig.S3Uri"),
    Field("checkpoint_local_path", "CheckpointConfig.LocalPath"),
    Field(
        "tensorboard_output_config",
        "TensorBoardOutputConfig",
        **_structs(s3_output_path="S3OutputPath", container_local_output_path="LocalPath"),
    ),
    Field("use_spot_instances", "EnableManagedSpotTraining"),
    Field("enable_network_isolation", "EnableNetworkIsolation"),
    Field("encrypt_inter_container_traffic", "EnableInterContainerTrafficEncryption"),
    Field("subnets", "VpcConfig.Subnets"),
    Field("security_group_ids", "VpcConfig.SecurityGroupIds"),
    Field("enable_infra_check", "InfraCheckConfig.EnableInfraCheck"),
    Field("enable_remote_debug", "RemoteDebugConfig.EnableRemoteDebug"),
    Field("enable_session_tag_chaining", "SessionChainingConfig.EnableSessionTagChaining"),
)
MEMBERS = {field.option: field.member for field in FIELDS}
# Options without effect unless another one is set: SageMaker requires both members, or has the second inside the first.
NEEDS = {
    "subnets": "security_group_ids",
    "security_group_ids": "subnets",
    "checkpoint_local_path": "checkpoint_s3_uri",
    "training_repository_credentials_provider_arn": "training_repository_access_mode",
}


def to_members(
    options: Mapping[str, Any], request: dict[str, Any] | None = None, fields: Sequence[Field] = FIELDS
) -> dict[str, Any]:
    """Return a request with the members of plain options added; options that no member carries are left out.

    >>> to_members({"max_run": 60, "disable_output_compression": True, "gpus": 1})
    {'OutputDataConfig': {'CompressionType': 'NONE'}, 'StoppingCondition': {'MaxRuntimeInSeconds': 60}}
    """
    request = {} if request is None else request
    for field in fields:
        value = options.get(field.option)
        if value is None or options.get(NEEDS.get(field.option, field.option)) is None:
            continue
        if (member := field.to(value)) is not None:
            place = request
            *path, name = field.member.split(".")
            for part in path:
                place = place.setdefault(part, {})
            place[name] = member
    return request


def take_options(rest: dict[str, Any], fields: Sequence[Field] = FIELDS) -> dict[str, Any]:
    """Remove the members that carry options, and return these; empty members set nothing.

    >>> take_options({"StoppingCondition": {"MaxRuntimeInSeconds": 60}, "VpcConfig": {}})
    {'max_run': 60}
    """
    taken = ((field, take(rest, *field.member.split("."))) for field in fields)
    options = {field.option: field.back(value) for field, value in taken if value is not None}
    return {name: value for name, value in options.items() if value is not None}


def take(rest: dict[str, Any], *path: str) -> Any:
    """Remove and return a member; None where it is missing or empty."""
    for name in path[:-1]:
        rest = rest.get(name) or {}
    value = rest.pop(path[-1], None)
    # SageMaker describes some members that were not in the request as empty ones.
    return None if value in ("", [], {}) else value
