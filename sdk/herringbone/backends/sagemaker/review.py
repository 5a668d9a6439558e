"""Review a plan offline: refuse what SageMaker cannot run, and list the options that it ignores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from herringbone.aws.image_uris import image_uri
from herringbone.aws.instance_types import num_gpus
from herringbone.backends.review.settings import check_ranks, is_of_aws, unserved_settings
from herringbone.backends.sagemaker.rendezvous import CHANNEL as KEY_CHANNEL
from herringbone.backends.sagemaker.rendezvous import needs_key
from herringbone.backends.sagemaker.request import CODE_CHANNEL
from herringbone.code.files import check_source
from herringbone.plan.channels import check_shares
from herringbone.plan.frameworks import IMAGES, image_version, unused_versions
from herringbone.plan.inputs import Channel
from herringbone.plan.options.names import HUGGING_FACE_VERSIONS
from herringbone.plan.options.typed import changed_options
from herringbone.plan.plan import JobPlan, refuse, watching
from herringbone.plan.request import JobRequest, groups_of
from herringbone.records.home import find_home
from herringbone.system.near import alternatives
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.faults.policies import FAULTS, RETRIES
from herringbone_contract.launcher import Launcher
from herringbone_contract.served import Library

_NAME = "sagemaker"
# CreateTrainingJob accepts at most this many channels.
MAX_CHANNELS = 20
# SageMaker starts the containers itself, and an `image_uri` names the image, so these options have no effect.
_VERSIONS = ("framework_version", "py_version")
_UNUSED = (*_VERSIONS, "shm_size", "slurm", "kubernetes", "priority", "retry_without_client")
_REFUSED = {
    "checkpoint_memory": "its hosts keep no checkpoints in memory, only those of local_process do",
    "idle_timeout": "no controller of ours runs there, which could stop the job; set max_run, or max_cost",
    "log_policies": "SageMaker retries a job after errors of its own only (max_retry_attempts)",
    "min_instance_count": "SageMaker retries a job with the same number of hosts; leave it out",
    "drain_notice": "SageMaker sends SIGTERM before it takes a spot instance away; leave it out",
    "keep_checkpoints": "SageMaker copies checkpoints to S3 itself, and removes none there; leave it out",
    "gpus": "an instance has the GPUs of its type; choose an instance_type with that many",
    "bake_requirements": "build the image with them: herringbone images build --requirements",
}
_S3_OPTIONS = ("output_path", "checkpoint_s3_uri", "code_location")


def review(plan: JobPlan) -> tuple[str, ...]:
    """Return the user's options that have no effect on SageMaker.

    Raises `UnsupportedError`, `OptionError`, `InputError` or `ArchiveError` for errors that show without an account.
    """
    options = changed_options(plan.options)
    refuse(_NAME, {name: reason for name, reason in _REFUSED.items() if options.get(name)})
    _check_image(plan)
    library = Library.AWS if is_of_aws(plan.arguments.image_uri or "") else Library.HERRINGBONE
    if library is Library.AWS:
        reason = "AWS's images do not watch a job; use an image of `herringbone images build`"
        refuse(_NAME, dict.fromkeys(watching(plan.options), reason))
    refuse(_NAME, _unanswered(plan.options.fault_policies))
    refuse(_NAME, unserved_settings(plan, library))
    _check_spot_and_checkpoints(plan)
    _check_s3_options(plan)
    _check_gpus(plan)
    check_ranks(plan, num_gpus(next(host.instance_type for host in plan.hosts if host.ranks != 0)))
    if plan.source is not None:
        # The home of jobs may lie inside the code's folder, but never belongs to the code.
        check_source(plan.source, exclude=find_home().path)
    _check_channels(plan)
    # Versions that are those of the image are no mistake, whoever named it.
    of_image = (image_version(plan) or "-") in (plan.arguments.image_uri or "").rpartition(":")[2]
    used = (*_VERSIONS, *HUGGING_FACE_VERSIONS) if of_image else ()
    unused = [name for name in _UNUSED if name in options and name not in used]
    return tuple(sorted([*unused, *unused_versions(plan, used)]))


def image_by_version(request: JobRequest, *, region: str) -> str:
    """Return the name of AWS's image for a request's framework, versions and first instance type with GPUs.

    Raises `OptionError` for a missing version, and `UnsupportedError` where AWS has no such image.
    """
    types = [group.instance_type for group in groups_of(request)]
    arguments = request.arguments
    below = {"pytorch": arguments.pytorch_version, "tensorflow": arguments.tensorflow_version}
    return image_uri(
        IMAGES[request.estimator],
        region=region,
        version=image_version(request),
        py_version=request.options.py_version,
        instance_type=next((name for name in types if num_gpus(name)), types[0]),
        base_version=next((name + version for name, version in below.items() if version), None),
    )


def _unanswered(policies: Mapping[str, str]) -> dict[str, str]:
    """Return the refusal of answers that only a platform that starts attempts itself can give."""
    wrong = [kind for kind, answer in policies.items() if not FAULTS[kind].watched or answer in RETRIES]
    reason = "SageMaker retries a job after errors of its own only; it serves report, stop and fail, of "
    watched = ", ".join(kind for kind, fault in FAULTS.items() if fault.watched)
    return {"fault_policies": f"{', '.join(wrong)}: {reason}{watched}"} if wrong else {}


def _check_image(plan: JobPlan) -> None:
    if not plan.arguments.image_uri:
        raise OptionError(
            "image_uri: missing; SageMaker runs an image from a registry. Make one with `herringbone images build "
            f"{IMAGES.get(plan.estimator, 'pytorch')}` and push it, or give the version of AWS's image: "
            f"{'transformers_version' if plan.estimator == 'HuggingFace' else 'framework_version'}"
        )
    options = plan.options
    provider_arn = options.training_repository_credentials_provider_arn
    if provider_arn is not None and options.training_repository_access_mode is None:
        raise OptionError(
            "training_repository_credentials_provider_arn: needs training_repository_access_mode='Vpc' next to it"
        )


def _check_spot_and_checkpoints(plan: JobPlan) -> None:
    options = plan.options
    if options.use_spot_instances and options.max_wait is None:
        raise OptionError(
            "use_spot_instances: needs max_wait, the limit in seconds for waiting plus running; at least max_run, "
            f"which is {options.max_run}"
        )
    if options.max_wait is not None and options.max_wait < options.max_run:
        raise OptionError(
            f"max_wait: {options.max_wait} s is less than max_run, {options.max_run} s; on SageMaker it counts waiting "
            "and running"
        )
    if options.checkpoint_local_path is not None and options.checkpoint_s3_uri is None:
        raise OptionError(
            "checkpoint_local_path: needs checkpoint_s3_uri, the location to which SageMaker copies that folder"
        )


def _check_s3_options(plan: JobPlan) -> None:
    addresses = {name: getattr(plan.options, name) for name in _S3_OPTIONS}
    config = plan.options.tensorboard_output_config
    addresses["tensorboard_output_config"] = None if config is None else config.s3_output_path
    for name, address in addresses.items():
        if address is not None and not address.startswith("s3://"):
            raise OptionError(f"{name}: {address} is no s3:// address, and SageMaker accepts no other address")


def _check_gpus(plan: JobPlan) -> None:
    if plan.distribution.launcher is not Launcher.DATA_PARALLEL:
        return
    # Hosts without ranks are helpers, which need no GPU.
    types_without_gpus = sorted(
        {host.instance_type for host in plan.hosts if host.ranks != 0 and num_gpus(host.instance_type) == 0}
    )
    if types_without_gpus:
        raise OptionError(
            f"instance_type: {', '.join(types_without_gpus)} has no GPUs, and distribution's dataparallel trains "
            "on GPUs; choose a type of the families p or g (ml.g5.12xlarge), or mpi to train on processors"
        )


def _check_channels(plan: JobPlan) -> None:
    # The code and the key arrive as channels, too: their names are reserved, and they count.
    channels = plan.channels
    names = [channel.name for channel in channels]
    has_code_channel = plan.source is not None and plan.options.enable_network_isolation
    if has_code_channel and CODE_CHANNEL in names:
        raise InputError(f"channel {CODE_CHANNEL!r}: an isolated container gets its code under that name; rename yours")
    has_key_channel = needs_key(plan)
    if has_key_channel and KEY_CHANNEL in names:
        raise InputError(f"channel {KEY_CHANNEL!r}: the hosts get a key under that name; rename yours")
    if (count := len(names) + has_code_channel + has_key_channel) > MAX_CHANNELS:
        owners = [owner for owner, present in (("code", has_code_channel), ("key", has_key_channel)) if present]
        included = f" (including the {' and the '.join(owners)})" if owners else ""
        raise InputError(
            f"inputs: {count} channels{included}; SageMaker accepts {MAX_CHANNELS}. Put several folders under one "
            "address"
        )
    for channel in channels:
        if channel.file_system is None:
            _check_channel(channel)
            if channel.path is not None and channel.input.s3_data_type == "S3Prefix":
                # The upload follows links.
                folders = os.walk(channel.path, followlinks=True)
                is_file = Path(channel.path).is_file()
                check_shares(channel, plan, ["it"] if is_file else (name for _, _, names in folders for name in names))
        elif plan.options.subnets is None:
            raise OptionError(
                f"channel {channel.name!r}: {channel.input.s3_data} can be reached only from a network of the account; "
                "give subnets and security_group_ids from which it can be reached"
            )


def _check_channel(channel: Channel) -> None:
    training_input = channel.input
    if training_input.target_attribute_name is not None:
        raise UnsupportedError(
            f"channel {channel.name!r}: target_attribute_name: a training job's channel has no such member; "
            "leave it out"
        )
    if channel.path is None:
        if not training_input.s3_data.startswith("s3://"):
            raise InputError(
                f"channel {channel.name!r}: {training_input.s3_data} is neither a local path nor an s3:// address"
            )
    elif not Path(channel.path).exists():
        raise InputError(
            f"channel {channel.name!r}: {channel.path}: no such file or folder{alternatives(Path(channel.path))}"
        )
    elif training_input.s3_data_type != "S3Prefix" and not Path(channel.path).is_file():
        raise InputError(
            f"channel {channel.name!r}: {channel.path} is a folder, and a {training_input.s3_data_type} is one file"
        )
