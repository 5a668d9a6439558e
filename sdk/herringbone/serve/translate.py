"""Turn a CreateTrainingJob request into one of own hosts: the way back of `backends.sagemaker.request`. Pure.

AWS's members --> [1] refuse members that nothing here could honour (actions.py)
              --> [2] `rebuild`, which reads DescribeTrainingJob's answers, reads them as well
              --> [3] map ml.* types to a backend, images to the engine's, s3:// addresses to the folder of buckets
              --> `JobRequest`, which `plan` checks once more for the backend
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from herringbone.backends.review.settings import is_of_aws
from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.plan.inputs import parse_inputs
from herringbone.plan.options.members import MEMBERS
from herringbone.plan.options.typed import InstanceGroup
from herringbone.plan.plan import WATCHED
from herringbone.plan.request import JobRequest, changed, request_of
from herringbone.s3.front.keys import NO_PATH, check_bucket_name, check_key, key_of, path_of
from herringbone.s3.front.refusals import S3Error
from herringbone.serve.actions import CONFIG, Fate, check_fates, fate_of
from herringbone.serve.errors import ApiError, error_of, invalid, over_limit
from herringbone.serve.settings import HostType, Settings
from herringbone.system.user_paths import current_folder
from herringbone.tuner.definition import ARGUMENTS
from herringbone.tuner.fields import FIELDS as SEARCH_FIELDS
from herringbone_contract.errors import HerringboneError, UsageError

# Classes of images for which a job here has an estimator; any script runs as an `Estimator`.
_KINDS = ("PyTorch", "TensorFlow", "MXNet")
_NEEDED = ("RoleArn", "AlgorithmSpecification", "ResourceConfig", "OutputDataConfig", "StoppingCondition")
# Options whose members are ignored here; `plan` would only list them as unused.
_DROPPED = (
    *(option for option, member in MEMBERS.items() if fate_of("CreateTrainingJob", member) is Fate.IGNORED),
    *("role", "tags", "extra_request"),
)
# Arguments of estimators and tuners with which messages begin -> the members of the request that set them.
_MEMBERS = {
    "source_dir": "HyperParameters.sagemaker_submit_directory",
    "entry_point": "HyperParameters.sagemaker_program",
    "container_log_level": "HyperParameters.sagemaker_container_log_level",
    **{name: f"HyperParameters.{key}" for name, key in WATCHED.items()},
    **MEMBERS,
    "instance_count": "ResourceConfig.InstanceCount",
    "image_uri": "AlgorithmSpecification.TrainingImage",
    **{ARGUMENTS.get(option, option): member.path for option, member in SEARCH_FIELDS.items()},
    "strategy_config": f"{CONFIG}.StrategyConfig",
    "warm_start_config": "WarmStartConfig",
    "autotune": f"{CONFIG}.ParameterRanges.AutoParameters",
    "complete_on_convergence": f"{CONFIG}.TuningJobCompletionCriteria.ConvergenceDetected",
    "max_number_of_training_jobs_not_improving": f"{CONFIG}.TuningJobCompletionCriteria.BestObjectiveNotImproving",
}


def translate(request: Mapping[str, Any], settings: Settings) -> JobRequest:
    """Return the request of own hosts for one that has passed the service model.

    >>> translate(request, Settings(backend="local_process")).arguments.instance_type       # doctest: +SKIP
    'local_process'

    Raises `ApiError`: ValidationException, or ResourceLimitExceeded for a type that the service does not have.
    """
    check_fates("CreateTrainingJob", request)
    # SageMaker's shape requires them no longer, for serverless jobs.
    missing = [name for name in _NEEDED if name not in request]
    if missing:
        raise invalid(f"{', '.join(missing)}: missing")
    if "TrainingImage" not in request["AlgorithmSpecification"]:
        raise invalid("AlgorithmSpecification.TrainingImage: missing")
    for channel in request.get("InputDataConfig", ()):
        if "S3DataSource" not in channel["DataSource"]:
            raise invalid(f"InputDataConfig: channel {channel['ChannelName']} has no S3DataSource")
        if settings.buckets is not None and channel["DataSource"]["S3DataSource"]["S3DataType"] != "S3Prefix":
            # Its lines name files, and would be read as this machine's.
            raise invalid(
                f"InputDataConfig: channel {channel['ChannelName']}: S3DataType is S3Prefix alone with buckets"
            )
    names = [channel["ChannelName"] for channel in request.get("InputDataConfig", ())]
    if twice := {name for name in names if names.count(name) > 1}:
        raise invalid(f"InputDataConfig: the channel {min(twice)} stands twice; give each channel a name of its own")
    hosts = wanted_hosts(request)
    kinds = {name: _known_type(name, settings) for name, _ in hosts}
    tensorboard = request.get("TensorBoardOutputConfig", {}).get("S3OutputPath", "")
    _check_own_folder("CheckpointConfig.S3Uri", request.get("CheckpointConfig", {}).get("S3Uri", ""), settings)
    _check_own_folder("TensorBoardOutputConfig.S3OutputPath", tensorboard, settings)
    try:
        made = request_of(rebuild(request))
    except HerringboneError as error:
        raise refused(error, settings) from None

    def place(address: str | None) -> str | None:
        return None if address is None else local_address(address, settings)

    options, arguments = made.options, made.arguments
    changes: dict[str, Any] = {
        **dict.fromkeys(_DROPPED),
        "source_dir": place(arguments.source_dir),
        "model_uri": place(options.model_uri),
        "output_path": place(options.output_path),
        "checkpoint_s3_uri": place(options.checkpoint_s3_uri),
        **_hosts_arguments(request, kinds, settings),
    }
    changes["image_uri"] = _image(request["AlgorithmSpecification"]["TrainingImage"], changes, settings)
    if (config := options.tensorboard_output_config) is not None:
        changes["tensorboard_output_config"] = msgspec.structs.replace(
            config, s3_output_path=local_address(config.s3_output_path, settings)
        )
    inputs = {
        channel.name: msgspec.structs.replace(channel.input, s3_data=local_address(channel.input.s3_data, settings))
        for channel in made.channels
    }
    made = msgspec.structs.replace(
        made,
        estimator=made.estimator if made.estimator in _KINDS else "Estimator",
        channels=parse_inputs(inputs, base=Path("/")),
        folder=str(current_folder()),
    )
    try:
        return changed(made, changes)
    except UsageError as error:
        raise refused(error, settings) from None


def wanted_hosts(request: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the types that a request wants, each with its number. Raises `ApiError` for a request without hosts."""
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [resources]
    try:
        return [(group["InstanceType"], group["InstanceCount"]) for group in groups]
    except KeyError as missing:
        raise invalid(f"ResourceConfig: {missing.args[0]} is missing") from None


def local_address(address: str, settings: Settings) -> str:
    """Return the address of an object below the folder of buckets; other addresses stay.

    >>> local_address("s3://mine/data/a b", Settings(backend="local", buckets="/srv/s3"))
    'file:///srv/s3/mine/data/a%20b'

    Keys become paths as in the front of S3, so none leads out of its bucket. Raises `ApiError` for an address that S3
    would not take, or that is no path.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme != "s3" or settings.buckets is None:
        return address
    bucket, _, key = rest.partition("/")
    key = key.removesuffix("/")
    try:
        path = path_of(check_key(key)) if key else ""
        folder = f"{settings.buckets.rstrip('/')}/{check_bucket_name(bucket)}"
    except S3Error as error:
        raise invalid(f"{address!a}: {error.message}") from None
    # Addresses are text, so one of a file whose name is no UTF-8 would be another file's.
    if path is None or key_of(path) != path:
        raise invalid(f"{address!a}: a job opens files by their paths, and {NO_PATH}; give the object another key")
    return "file://" + quote(f"{folder}/{path}" if key else folder)


def refused(error: HerringboneError, settings: Settings | None = None) -> ApiError:
    """Return the refusal for an error of `plan` or of a tuner, with the request's members and addresses.

    >>> settings = Settings(backend="local", buckets="/srv/s3")
    >>> refused(OptionError("source_dir: /srv/s3/mine/code.tar.gz: no such file"), settings).message    # doctest: +SKIP
    'HyperParameters.sagemaker_submit_directory: s3://mine/code.tar.gz: no such file'

    A client knows neither the arguments of estimators nor the folders of the service's machine.
    """
    message = str(error)
    if isinstance(error, UsageError) and error.argument in _MEMBERS:
        message = f"{_MEMBERS[error.argument]}: {error.reason}"
    if settings is not None and settings.buckets is not None:
        folder = settings.buckets.rstrip("/")
        for start in (f"file://{quote(folder)}/", f"{folder}/"):
            message = message.replace(start, "s3://")
    return error_of(error, message)


def _check_own_folder(member: str, address: str, settings: Settings) -> None:
    """Raise `ApiError` for a whole bucket where the job's script writes: the front's own files are in it, too."""
    bucket, _, key = address.removeprefix("s3://").partition("/")
    if settings.buckets is not None and address.startswith("s3://") and not key.strip("/"):
        raise invalid(f"{member}: {address} is a whole bucket; give a folder in it, such as s3://{bucket}/checkpoints")


def _known_type(instance_type: str, settings: Settings) -> HostType:
    kind = settings.mapping.host_type(instance_type)
    if kind is None:
        raise over_limit(
            f"The account-level service limit '{instance_type} for training job usage' is 0 Instances; this service "
            f"has {', '.join(settings.mapping.instance_types or ()) or 'no types'}"
        )
    return kind


def _hosts_arguments(request: Mapping[str, Any], kinds: Mapping[str, HostType], settings: Settings) -> dict[str, Any]:
    """Return `instance_type` and `instance_count`, or `instance_groups`, and `gpus`."""
    backends = {name: kind.backend or settings.backend for name, kind in kinds.items()}
    gpus = {kind.gpus for kind in kinds.values()}
    if len(gpus) > 1:
        raise invalid("ResourceConfig.InstanceGroups: all groups of one job must have the same number of GPUs here")
    (number,) = gpus
    arguments: dict[str, Any] = {} if number is None else {"gpus": number}
    resources = request["ResourceConfig"]
    if groups := resources.get("InstanceGroups"):
        return arguments | {
            "instance_groups": [
                InstanceGroup(group["InstanceGroupName"], backends[group["InstanceType"]], group["InstanceCount"])
                for group in groups
            ],
            "instance_type": None,
            "instance_count": None,
        }
    return arguments | {
        "instance_type": backends[resources["InstanceType"]],
        "instance_count": resources["InstanceCount"],
    }


def _image(uri: str, arguments: Mapping[str, Any], settings: Settings) -> str | None:
    if arguments.get("instance_type") == "local_process":
        return None
    if (image := settings.mapping.image(uri)) is not None:
        return image
    # AWS's own images are not on own hosts; without one, the backend takes its newest image of the framework.
    return None if is_of_aws(uri) else uri


def check_role(arn: str, settings: Settings) -> None:
    """Raise `ApiError` (AccessDeniedException) for a role that may not be passed; only names are compared."""
    mine = arn.startswith(f"arn:aws:iam::{settings.account}:role/")
    if not mine or (settings.mapping.roles is not None and arn not in settings.mapping.roles):
        raise ApiError(
            "AccessDeniedException",
            f"RoleArn {arn}: not a role that may be passed to this service; "
            + (
                f"it takes {', '.join(settings.mapping.roles)}"
                if settings.mapping.roles is not None
                else f"a role of account {settings.account} may be"
            ),
        )
