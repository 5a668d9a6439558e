"""What SageMaker is asked for: the whole CreateTrainingJob request as a plain object, to print and compare. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from herringbone.backends.sagemaker.merge import merge
from herringbone.backends.sagemaker.rendezvous import key_channel, needs_key, variables
from herringbone.estimators.inputs import Channel, FileSystemInput
from herringbone.planning.plan import SHARED_MODEL_DIR, JobPlan
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.hyperparameters import check_limits

# Where an isolated container, which cannot fetch, finds its code: a channel of its own.
CODE_CHANNEL = "code"
ARCHIVE = "sourcedir.tar.gz"
MODEL_TYPE = "application/x-sagemaker-model"
_PREFIX = "herringbone"


@dataclass(frozen=True, slots=True)
class AccountNames:
    """What only the account, or reading the files, can tell; each stands in as `${...}` until it is known.

    >>> AccountNames(region="eu-west-1").bucket
    '${default_bucket}'

    `code_hash` and `data_hashes` (by channel) are of the content to upload, `key_id` names the folder of the hosts'
    key. `role_arn` is None for "not looked up".
    """

    region: str = "${region}"
    bucket: str = "${default_bucket}"
    role_arn: str | None = None
    code_hash: str = "${code_hash}"
    key_id: str = "${key_id}"
    data_hashes: Mapping[str, str] = field(default_factory=dict)

    def data_hash(self, channel: str) -> str:
        return self.data_hashes.get(channel, f"${{data_hash:{channel}}}")


def training_job_request(plan: JobPlan, names: AccountNames) -> dict[str, Any]:
    """Return the CreateTrainingJob request of a plan, with `extra_request` merged in last.

    >>> training_job_request(plan, AccountNames())["StoppingCondition"]      # doctest: +SKIP
    {'MaxRuntimeInSeconds': 86400}

    Raises `HyperparameterError` for too many hyperparameters, `OptionError` where `extra_request` contradicts.
    """
    options = plan.options
    request: dict[str, Any] = {
        "TrainingJobName": plan.job_name,
        "AlgorithmSpecification": _algorithm(plan),
        "RoleArn": _role_arn(options.role, names),
        "OutputDataConfig": _output(plan, names),
        "ResourceConfig": _resources(plan),
        "StoppingCondition": _given(
            MaxRuntimeInSeconds=options.max_run,
            MaxWaitTimeInSeconds=options.max_wait,
        ),
        "HyperParameters": _hyperparameters(plan, names),
        **_given(
            InputDataConfig=input_channels(plan, names) or None,
            Environment=variables(plan) or None,
            Tags=_tags(options.tags),
            CheckpointConfig=_checkpoints(plan),
            EnableManagedSpotTraining=options.use_spot_instances or None,
            EnableNetworkIsolation=options.enable_network_isolation or None,
            EnableInterContainerTrafficEncryption=options.encrypt_inter_container_traffic or None,
        ),
    }
    if options.subnets is not None and options.security_group_ids is not None:
        request["VpcConfig"] = {
            "Subnets": list(options.subnets),
            "SecurityGroupIds": list(options.security_group_ids),
        }
    if options.max_retry_attempts is not None:
        request["RetryStrategy"] = {"MaximumRetryAttempts": options.max_retry_attempts}
    if options.enable_infra_check is not None:
        request["InfraCheckConfig"] = {"EnableInfraCheck": options.enable_infra_check}
    if options.enable_remote_debug is not None:
        request["RemoteDebugConfig"] = {"EnableRemoteDebug": options.enable_remote_debug}
    if options.enable_session_tag_chaining is not None:
        request["SessionChainingConfig"] = {"EnableSessionTagChaining": options.enable_session_tag_chaining}
    return merge(request, options.extra_request or {})


def input_channels(plan: JobPlan, names: AccountNames) -> list[dict[str, Any]]:
    """Return InputDataConfig: the user's channels, the model's, the code's and the key's where needed."""
    channels = [_channel(channel, plan, names) for channel in plan.channels]
    if plan.options.model_uri is not None:
        # A model is fetched whole, whatever the data's mode; the type is by what AWS's images know it.
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
        return _mounted(channel.name, channel.file_system)
    given = channel.input
    uri = given.s3_data
    if channel.path is not None:
        uri = data_uri(plan, names, channel.name)
        if given.s3_data_type != "S3Prefix":  # a manifest is one object
            uri += f"/{PurePath(channel.path).name}"
    source = _given(
        S3DataType=given.s3_data_type,
        S3Uri=uri,
        S3DataDistributionType=given.distribution or "FullyReplicated",
        InstanceGroupNames=_list(given.instance_groups),
        AttributeNames=_list(given.attribute_names),
    )
    return {
        "ChannelName": channel.name,
        "DataSource": {"S3DataSource": source},
        **_given(
            CompressionType=given.compression,
            ContentType=given.content_type,
            RecordWrapperType=given.record_wrapping,
            InputMode=given.input_mode,
            ShuffleConfig=None if given.shuffle_config is None else {"Seed": given.shuffle_config.seed},
        ),
    }


def _mounted(name: str, folder: FileSystemInput) -> dict[str, Any]:
    source = {
        "FileSystemId": folder.file_system_id,
        "FileSystemType": folder.file_system_type,
        "DirectoryPath": folder.directory_path,
        "FileSystemAccessMode": folder.file_system_access_mode,
    }
    return {
        "ChannelName": name,
        "DataSource": {"FileSystemDataSource": source},
        **_given(ContentType=folder.content_type),
    }


def _algorithm(plan: JobPlan) -> dict[str, Any]:
    options = plan.options
    image_config: dict[str, Any] | None = None
    if options.training_repository_access_mode is not None:
        image_config = {"TrainingRepositoryAccessMode": options.training_repository_access_mode}
        lender = options.training_repository_credentials_provider_arn
        if lender is not None:
            image_config["TrainingRepositoryAuthConfig"] = {"TrainingRepositoryCredentialsProviderArn": lender}
    metrics = [{"Name": metric.name, "Regex": metric.regex} for metric in options.metric_definitions]
    return _given(
        TrainingImage=plan.arguments.get("image_uri"),
        TrainingInputMode=options.input_mode,
        MetricDefinitions=metrics or None,
        ContainerEntrypoint=_list(options.container_entry_point),
        ContainerArguments=_list(options.container_arguments),
        TrainingImageConfig=image_config,
    )


def _role_arn(role: str | None, names: AccountNames) -> str:
    if role is not None and role.startswith("arn:"):
        return role
    if names.role_arn is not None:
        return names.role_arn
    return "${role_arn}" if role is None else f"${{role_arn:{role}}}"


def _output(plan: JobPlan, names: AccountNames) -> dict[str, Any]:
    options = plan.options
    return _given(
        S3OutputPath=_output_path(plan, names),
        KmsKeyId=options.output_kms_key,
        CompressionType="NONE" if options.disable_output_compression else None,
    )


def _output_path(plan: JobPlan, names: AccountNames) -> str:
    return plan.options.output_path or f"s3://{names.bucket}/"


def _resources(plan: JobPlan) -> dict[str, Any]:
    options = plan.options
    hosts: dict[str, Any] = {"InstanceCount": len(plan.hosts), "InstanceType": plan.hosts[0].instance_type}
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
        **_given(
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
        values = _for_a_program_of_the_image(values)
    else:
        address = f"/opt/ml/input/data/{CODE_CHANNEL}/{ARCHIVE}" if _code_is_a_channel(plan) else code_uri(plan, names)
        values[Key.SUBMIT_DIRECTORY] = json.dumps(address)
        values[Key.REGION] = json.dumps(names.region)
    if values.get("model_dir") == json.dumps(SHARED_MODEL_DIR):
        # SageMaker's hosts share no folder; they share the bucket.
        values["model_dir"] = json.dumps(f"{_output_path(plan, names).rstrip('/')}/{plan.job_name}/model")
    check_limits(values)
    return values


def _for_a_program_of_the_image(values: Mapping[str, str]) -> dict[str, str]:
    """Texts bare, and nothing about a script: an algorithm of AWS's refuses names and quotes that it does not know."""
    bare = {}
    for name, text in values.items():
        if name in (Key.LOG_LEVEL, Key.JOB_NAME):
            continue
        value = json.loads(text)
        bare[name] = value if isinstance(value, str) and not name.startswith(STEERING_PREFIX) else text
    return bare


def _code_is_a_channel(plan: JobPlan) -> bool:
    return plan.source is not None and plan.options.enable_network_isolation


def upload_location(plan: JobPlan, names: AccountNames) -> str:
    """Return below which address code and local data are put: the user's `code_location`, or the default bucket."""
    return (plan.options.code_location or f"s3://{names.bucket}/{_PREFIX}").rstrip("/")


def data_uri(plan: JobPlan, names: AccountNames, channel: str) -> str:
    """Return the address below which the files of a channel on this machine are put, by content as well."""
    return f"{upload_location(plan, names)}/data/{names.data_hash(channel)}"


def key_folder(plan: JobPlan, names: AccountNames) -> str:
    """Return where the key of a job's hosts lies: with the code, which the bucket's lifecycle removes one day."""
    return f"{upload_location(plan, names)}/code/keys/{names.key_id}"


def code_uri(plan: JobPlan, names: AccountNames) -> str:
    """Return the address of the packed code: by content, so that code which did not change is not uploaded again."""
    if plan.source is not None and plan.source.remote:
        return plan.source.address
    return f"{upload_location(plan, names)}/code/{names.code_hash}/{ARCHIVE}"


def _checkpoints(plan: JobPlan) -> dict[str, Any] | None:
    options = plan.options
    if options.checkpoint_s3_uri is None:
        return None
    return _given(S3Uri=options.checkpoint_s3_uri, LocalPath=options.checkpoint_local_path)


def _tags(tags: tuple[dict[str, str], ...] | dict[str, str] | None) -> list[dict[str, str]] | None:
    if not tags:
        return None
    if isinstance(tags, dict):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return [dict(tag) for tag in tags]


def _list(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _given(**members: Any) -> dict[str, Any]:
    """Return the members that have a value: the service takes silence, not null."""
    return {name: value for name, value in members.items() if value is not None}
