"""Build the whole CreateTrainingJob request as a plain object, to print, compare and send. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import msgspec

from herringbone.backends.sagemaker.rendezvous import host_environment, key_channel, needs_key
from herringbone.plan.inputs import Channel, FileSystemInput, TrainingInput
from herringbone.plan.options.members import MEMBERS, fields_of, to_members
from herringbone.plan.options.typed import Options
from herringbone.plan.plan import JobPlan
from herringbone_contract.constants import SHARED_MODEL_DIR, Key
from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import bare_values, check_limits

# A container with network isolation cannot download its code, so the code arrives as a channel of this name.
CODE_CHANNEL = "code"
ARCHIVE = "sourcedir.tar.gz"
MODEL_TYPE = "application/x-sagemaker-model"
_PREFIX = "herringbone"
_DEFAULTS = Options()
_INPUT_FIELDS, _FILE_SYSTEM_FIELDS = fields_of(TrainingInput), fields_of(FileSystemInput)


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
    hosts: dict[str, Any] = {"InstanceCount": len(plan.hosts), "InstanceType": plan.hosts[0].instance_type}
    request: dict[str, Any] = {
        "TrainingJobName": plan.job_name,
        "AlgorithmSpecification": _without_none(TrainingImage=plan.arguments.image_uri),
        # SageMaker accepts either instance groups, which are an option, or one type and one count.
        "ResourceConfig": hosts if plan.options.instance_groups is None else {},
        "HyperParameters": _hyperparameters(plan, names),
        **_without_none(InputDataConfig=input_channels(plan, names) or None),
    }
    own = {
        "role": _role_arn(plan.options.role, names),
        "output_path": _output_path(plan, names),
        "environment": host_environment(plan) or None,
        "max_run": plan.time_limit,
    }
    to_members(_set_options(plan.options) | own, request)
    # Last, so that `extra_request` can add to every object above, and a contradiction with any of them shows.
    return merge_extra(request, plan.options.extra_request or {})


def _set_options(options: Options) -> dict[str, Any]:
    """Return the options that members carry as plain values, without those that are off: SageMaker refuses null."""
    values = {option: getattr(options, option) for option in MEMBERS}
    # Compared with the default, because 0 and False are meaningful values of some options.
    values = {option: value for option, value in values.items() if value or value != getattr(_DEFAULTS, option)}
    return _plain(values)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    # By way of JSON, which has lists in place of tuples.
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(values))
    return plain


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
        values, fields = msgspec.structs.asdict(channel.file_system), _FILE_SYSTEM_FIELDS
    else:
        training_input = channel.input
        values = msgspec.structs.asdict(training_input)
        values["distribution"] = training_input.distribution or "FullyReplicated"
        if channel.path is not None:
            values["s3_data"] = data_uri(plan, names, channel.name)
            if training_input.s3_data_type != "S3Prefix":
                # A manifest is a single object, so the URI must name it rather than its prefix.
                values["s3_data"] += f"/{PurePath(channel.path).name}"
        fields = _INPUT_FIELDS
    return to_members(_plain(values), {"ChannelName": channel.name}, fields=fields)


def _role_arn(role: str | None, names: AccountNames) -> str:
    # A complete ARN goes into the request even offline; a name waits for the lookup in the account.
    if role is not None and role.startswith("arn:"):
        return role
    if names.role_arn is not None:
        return names.role_arn
    return "${role_arn}" if role is None else f"${{role_arn:{role}}}"


def _output_path(plan: JobPlan, names: AccountNames) -> str:
    return plan.options.output_path or f"s3://{names.bucket}/"


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


def _without_none(**members: Any) -> dict[str, Any]:
    """Return the members that are not None, because the service refuses null."""
    return {name: value for name, value in members.items() if value is not None}
