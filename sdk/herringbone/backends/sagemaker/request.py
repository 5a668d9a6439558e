"""Build the whole CreateTrainingJob request as a plain object, to print, compare and send. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from herringbone.backends.sagemaker.rendezvous import host_environment, key_channel, needs_key
from herringbone.plan.inputs import Channel, FileSystemInput
from herringbone.plan.plan import JobPlan
from herringbone_contract.constants import SHARED_MODEL_DIR, Key
from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import bare_values, check_limits

# A container with network isolation cannot download its code, so the code arrives as a channel of this name.
CODE_CHANNEL = "code"
ARCHIVE = "sourcedir.tar.gz"
MODEL_TYPE = "application/x-sagemaker-model"
_PREFIX = "herringbone"


@dataclass(frozen=True, slots=True)
class AccountNames:
    """Names that come from the account or from reading the files; each is a stand-in, `${...}`, until it is known.

    >>> AccountNames(region="eu-west-1").bucket
    '${default_bucket}'

    `code_hash` and `data_hashes` (by channel) are hashes of the content to upload. `key_id` names the folder of the
    hosts' key. `role_arn` is None until somebody has looked it up.
    """

    region: str = "${region}"
    bucket: str = "${default_bucket}"
    role_arn: str | None = None
    code_hash: str = "${code_hash}"
    key_id: str = "${key_id}"
    data_hashes: Mapping[str, str] = field(default_factory=dict)

    def data_hash(self, channel: str) -> str:
        return self.data_hashes.get(channel, f"${{data_hash:{channel}}}")


def example_names(plan: JobPlan) -> AccountNames:
    """Return plausible names for a check of the request without an account.

    The service model checks lengths and patterns, which `${...}` would break.
    """
    return AccountNames(
        region="us-east-1",
        bucket="sagemaker-us-east-1-123456789012",
        role_arn="arn:aws:iam::123456789012:role/example",
        code_hash="0" * 64,
        key_id="0" * 32,
        data_hashes={channel.name: "0" * 64 for channel in plan.channels},
    )


def training_job_request(plan: JobPlan, names: AccountNames) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a plan, with `extra_request` merged in last.

    >>> training_job_request(plan, AccountNames())["StoppingCondition"]      # doctest: +SKIP
    {'MaxRuntimeInSeconds': 86400}

    Raises `HyperparameterError` for too many hyperparameters, `OptionError` where `extra_request` contradicts an
    option.
    """
    options = plan.options
    request: dict[str, Any] = {
        "TrainingJobName": plan.job_name,
        "AlgorithmSpecification": _algorithm(plan),
        "RoleArn": _role_arn(options.role, names),
        "OutputDataConfig": _output(plan, names),
        "ResourceConfig": _resources(plan),
        "StoppingCondition": _without_none(
            MaxRuntimeInSeconds=options.max_run,
            MaxWaitTimeInSeconds=options.max_wait,
        ),
        "HyperParameters": _hyperparameters(plan, names),
        **_without_none(
            InputDataConfig=input_channels(plan, names) or None,
            Environment=host_environment(plan) or None,
            Tags=tag_list(options.tags),
            CheckpointConfig=_checkpoints(plan),
            TensorBoardOutputConfig=_tensorboard(plan),
            # False is SageMaker's default for these three members, so it is left out.
            EnableManagedSpotTraining=options.use_spot_instances or None,
            EnableNetworkIsolation=options.enable_network_isolation or None,
            EnableInterContainerTrafficEncryption=options.encrypt_inter_container_traffic or None,
        ),
    }
    # SageMaker requires both members of VpcConfig.
    if options.subnets is not None and options.security_group_ids is not None:
        request["VpcConfig"] = {
            "Subnets": list(options.subnets),
            "SecurityGroupIds": list(options.security_group_ids),
        }
    # Compared with None, because 0 and False are meaningful values of these options.
    if options.max_retry_attempts is not None:
        request["RetryStrategy"] = {"MaximumRetryAttempts": options.max_retry_attempts}
    if options.enable_infra_check is not None:
        request["InfraCheckConfig"] = {"EnableInfraCheck": options.enable_infra_check}
    if options.enable_remote_debug is not None:
        request["RemoteDebugConfig"] = {"EnableRemoteDebug": options.enable_remote_debug}
    if options.enable_session_tag_chaining is not None:
        request["SessionChainingConfig"] = {"EnableSessionTagChaining": options.enable_session_tag_chaining}
    # Last, so that `extra_request` can add to every object above, and a contradiction with any of them shows.
    return merge_extra(request, options.extra_request or {})


def merge_extra(request: Mapping[str, Any], extra: Mapping[str, Any], *, parent: str = "") -> dict[str, Any]:
    """Return the request with the members of `extra_request` added; objects merge member by member.

    >>> merge_extra({"ResourceConfig": {"InstanceCount": 1}}, {"ResourceConfig": {"SelectedInstanceCount": 1}})
    {'ResourceConfig': {'InstanceCount': 1, 'SelectedInstanceCount': 1}}

    Raises `OptionError` for a member that the request already has with another value.
    """
    merged = dict(request)
    for name, extra_value in extra.items():
        path = f"{parent}.{name}" if parent else str(name)
        value = request.get(name)
        if name not in request or value == extra_value:
            merged[name] = extra_value
        elif isinstance(value, Mapping) and isinstance(extra_value, Mapping):
            merged[name] = merge_extra(value, extra_value, parent=path)
        else:
            # The message contains no values, because parts of a request may be secret.
            raise OptionError(
                f"extra_request: {path} is in the request already, with another value, from the estimator's own "
                "options; change the option, or leave the member out of extra_request"
            )
    return merged


def input_channels(plan: JobPlan, names: AccountNames) -> list[dict[str, Any]]:
    """Return InputDataConfig: the channels of the user, and those of the model, the code and the key if needed."""
    channels = [_channel(channel, plan, names) for channel in plan.channels]
    if plan.options.model_uri is not None:
        # The model's channel is the last one. Even in Pipe mode the model must arrive as a file, and AWS's own images
        # recognize it by this content type.
        channels[-1] |= {"ContentType": MODEL_TYPE, "InputMode": "File"}
    if _code_is_a_channel(plan):
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": code_uri(plan, names),
            "S3DataDistributionType": "FullyReplicated",
        }
        channels.append({"ChannelName": CODE_CHANNEL, "DataSource": {"S3DataSource": source}})
    if needs_key(plan):
        channels.append(key_channel(key_folder(plan, names)))
    return channels


def _channel(channel: Channel, plan: JobPlan, names: AccountNames) -> dict[str, Any]:
    if channel.file_system is not None:
        return _file_system_channel(channel.name, channel.file_system)
    training_input = channel.input
    uri = training_input.s3_data
    if channel.path is not None:
        uri = data_uri(plan, names, channel.name)
        if training_input.s3_data_type != "S3Prefix":
            # A manifest is a single object, so the URI must name it rather than its prefix.
            uri += f"/{PurePath(channel.path).name}"
    source = _without_none(
        S3DataType=training_input.s3_data_type,
        S3Uri=uri,
        S3DataDistributionType=training_input.distribution or "FullyReplicated",
        InstanceGroupNames=_list(training_input.instance_groups),
        AttributeNames=_list(training_input.attribute_names),
    )
    return {
        "ChannelName": channel.name,
        "DataSource": {"S3DataSource": source},
        **_without_none(
            CompressionType=training_input.compression,
            ContentType=training_input.content_type,
            RecordWrapperType=training_input.record_wrapping,
            InputMode=training_input.input_mode,
            ShuffleConfig=None
            if training_input.shuffle_config is None
            else {"Seed": training_input.shuffle_config.seed},
        ),
    }


def _file_system_channel(name: str, folder: FileSystemInput) -> dict[str, Any]:
    source = {
        "FileSystemId": folder.file_system_id,
        "FileSystemType": folder.file_system_type,
        "DirectoryPath": folder.directory_path,
        "FileSystemAccessMode": folder.file_system_access_mode,
    }
    return {
        "ChannelName": name,
        "DataSource": {"FileSystemDataSource": source},
        **_without_none(ContentType=folder.content_type),
    }


def _algorithm(plan: JobPlan) -> dict[str, Any]:
    options = plan.options
    image_config: dict[str, Any] | None = None
    if options.training_repository_access_mode is not None:
        image_config = {"TrainingRepositoryAccessMode": options.training_repository_access_mode}
        provider_arn = options.training_repository_credentials_provider_arn
        if provider_arn is not None:
            image_config["TrainingRepositoryAuthConfig"] = {"TrainingRepositoryCredentialsProviderArn": provider_arn}
    metrics = [{"Name": metric.name, "Regex": metric.regex} for metric in options.metric_definitions]
    return _without_none(
        TrainingImage=plan.arguments.image_uri,
        TrainingInputMode=options.input_mode,
        MetricDefinitions=metrics or None,
        ContainerEntrypoint=_list(options.container_entry_point),
        ContainerArguments=_list(options.container_arguments),
        TrainingImageConfig=image_config,
    )


def _role_arn(role: str | None, names: AccountNames) -> str:
    # A complete ARN goes into the request even offline; a name waits for the lookup in the account.
    if role is not None and role.startswith("arn:"):
        return role
    if names.role_arn is not None:
        return names.role_arn
    return "${role_arn}" if role is None else f"${{role_arn:{role}}}"


def _output(plan: JobPlan, names: AccountNames) -> dict[str, Any]:
    options = plan.options
    return _without_none(
        S3OutputPath=_output_path(plan, names),
        KmsKeyId=options.output_kms_key,
        CompressionType="NONE" if options.disable_output_compression else None,
    )


def _output_path(plan: JobPlan, names: AccountNames) -> str:
    return plan.options.output_path or f"s3://{names.bucket}/"


def _resources(plan: JobPlan) -> dict[str, Any]:
    options = plan.options
    hosts: dict[str, Any] = {"InstanceCount": len(plan.hosts), "InstanceType": plan.hosts[0].instance_type}
    # SageMaker accepts either instance groups, or one type and one count.
    if options.instance_groups is not None:
        hosts = {
            "InstanceGroups": [
                {
                    "InstanceGroupName": group.instance_group_name,
                    "InstanceType": group.instance_type,
                    "InstanceCount": group.instance_count,
                }
                for group in options.instance_groups
            ]
        }
    return {
        **hosts,
        **_without_none(
            VolumeSizeInGB=options.volume_size,
            VolumeKmsKeyId=options.volume_kms_key,
            KeepAlivePeriodInSeconds=options.keep_alive_period_in_seconds,
            TrainingPlanArn=options.training_plan,
            InstancePlacementConfig=options.instance_placement_config,
        ),
    }


def _hyperparameters(plan: JobPlan, names: AccountNames) -> dict[str, str]:
    values = dict(plan.hyperparameters)
    if plan.source is None:
        values = bare_values(values)
    else:
        address = f"/opt/ml/input/data/{CODE_CHANNEL}/{ARCHIVE}" if _code_is_a_channel(plan) else code_uri(plan, names)
        # Hyperparameters are texts that contain JSON, as AWS's own SDK and training toolkit encode them.
        values[Key.SUBMIT_DIRECTORY] = json.dumps(address)
        values[Key.REGION] = json.dumps(names.region)
    if values.get("model_dir") == json.dumps(SHARED_MODEL_DIR):
        # SageMaker's hosts share no folder, so the shared model folder lies in the bucket.
        values["model_dir"] = json.dumps(f"{_output_path(plan, names).rstrip('/')}/{plan.job_name}/model")
    # Checked once more after planning, because the names added above count, too.
    check_limits(values)
    return values


def _code_is_a_channel(plan: JobPlan) -> bool:
    return plan.source is not None and plan.options.enable_network_isolation


def upload_location(plan: JobPlan, names: AccountNames) -> str:
    """Return the S3 URI below which code and local data go: `code_location`, or a prefix of the default bucket."""
    return (plan.options.code_location or f"s3://{names.bucket}/{_PREFIX}").rstrip("/")


def data_uri(plan: JobPlan, names: AccountNames, channel: str) -> str:
    """Return the S3 URI below which the files of a local channel go; the URI contains the hash of the content."""
    return f"{upload_location(plan, names)}/data/{names.data_hash(channel)}"


def key_folder(plan: JobPlan, names: AccountNames) -> str:
    """Return the S3 folder of the hosts' key; it lies below `code/`, which the bucket's lifecycle rule expires."""
    return f"{upload_location(plan, names)}/code/keys/{names.key_id}"


def code_uri(plan: JobPlan, names: AccountNames) -> str:
    """Return the S3 URI of the packed code; it contains the hash, so unchanged code is not uploaded again."""
    # The user's archive in S3 is not copied.
    if plan.source is not None and plan.source.remote:
        return plan.source.address
    return f"{upload_location(plan, names)}/code/{names.code_hash}/{ARCHIVE}"


def _checkpoints(plan: JobPlan) -> dict[str, Any] | None:
    options = plan.options
    if options.checkpoint_s3_uri is None:
        return None
    return _without_none(S3Uri=options.checkpoint_s3_uri, LocalPath=options.checkpoint_local_path)


def _tensorboard(plan: JobPlan) -> dict[str, Any] | None:
    config = plan.options.tensorboard_output_config
    if config is None:
        return None
    return _without_none(S3OutputPath=config.s3_output_path, LocalPath=config.container_local_output_path)


def tag_list(tags: tuple[dict[str, str], ...] | dict[str, str] | None) -> list[dict[str, str]] | None:
    """Return tags as SageMaker takes them; None where there are none.

    >>> tag_list({"team": "vision"})
    [{'Key': 'team', 'Value': 'vision'}]
    """
    if not tags:
        return None
    if isinstance(tags, dict):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return [dict(tag) for tag in tags]


def _list(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _without_none(**members: Any) -> dict[str, Any]:
    """Return the members that are not None, because the service refuses null."""
    return {name: value for name, value in members.items() if value is not None}
