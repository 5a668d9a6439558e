"""What `sagemaker` makes of a plan, offline: what the service cannot serve, and what it has no use for."""

from __future__ import annotations

import re
from pathlib import Path

from herringbone.backends.sagemaker.rendezvous import CHANNEL as KEY_CHANNEL
from herringbone.backends.sagemaker.rendezvous import needs_key
from herringbone.backends.sagemaker.request import CODE_CHANNEL
from herringbone.code.files import check_source
from herringbone.estimators.inputs import Channel
from herringbone.estimators.options import given_options
from herringbone.jobs.home import find_home
from herringbone.planning.plan import JobPlan, refuse
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.launcher import Launcher

_NAME = "sagemaker"
MAX_CHANNELS = 20
# Means nothing to a service whose containers nobody of us starts, or to a job whose image is named.
_UNUSED = ("framework_version", "py_version", "shm_size", "slurm")
_REFUSED = {
    "log_policies": "the service decides by its own errors whether a job is tried again (max_retry_attempts)",
    "min_instance_count": "the service tries a job again on as many hosts as before; leave it out",
    "bake_requirements": "build the image with them: herringbone images build --requirements",
}
# The estimator's class -> the framework to build an image of.
_FRAMEWORKS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "MXNet": "mxnet"}
_ADDRESSES = ("output_path", "checkpoint_s3_uri", "code_location")
# Families of instance types that have GPUs: p3, p4d, g5, g6e, ... but not c6g, whose g is the processor's.
_GPU_TYPE = re.compile(r"ml\.[gp]\d\w*\.\w+")


def review(plan: JobPlan) -> tuple[str, ...]:
    """Return the given options that mean nothing here.

    Raises `UnsupportedError`, `OptionError`, `InputError` or `ArchiveError` for what can be seen without an account.
    """
    given = given_options(plan.options)
    refuse(_NAME, {name: why for name, why in _REFUSED.items() if given.get(name)})
    _check_image(plan)
    _check_money(plan)
    _check_addresses(plan)
    _check_gpus(plan)
    if plan.source is not None:
        check_source(plan.source, but_not=find_home().path)
    _check_channels(plan)
    return tuple(sorted(name for name in _UNUSED if name in given))


def _check_image(plan: JobPlan) -> None:
    if not plan.arguments.get("image_uri"):
        raise OptionError(
            "image_uri: missing; SageMaker runs an image from a registry. Make one with `herringbone images build "
            f"{_FRAMEWORKS.get(plan.estimator, 'pytorch')}` and push it, or give AWS's own or anyone else's"
        )
    options = plan.options
    lender = options.training_repository_credentials_provider_arn
    if lender is not None and options.training_repository_access_mode is None:
        raise OptionError(
            "training_repository_credentials_provider_arn: needs training_repository_access_mode='Vpc' beside it"
        )


def _check_money(plan: JobPlan) -> None:
    options = plan.options
    if options.use_spot_instances and options.max_wait is None:
        raise OptionError(
            f"use_spot_instances: needs max_wait, the most seconds to wait and run; at least max_run, {options.max_run}"
        )
    if options.checkpoint_local_path is not None and options.checkpoint_s3_uri is None:
        raise OptionError(
            "checkpoint_local_path: needs checkpoint_s3_uri, where the service keeps what is written there"
        )


def _check_addresses(plan: JobPlan) -> None:
    for name in _ADDRESSES:
        address = getattr(plan.options, name)
        if address is not None and not address.startswith("s3://"):
            raise OptionError(f"{name}: {address} is no s3:// address, and SageMaker reaches no other place")


def _check_gpus(plan: JobPlan) -> None:
    if plan.distribution.launcher is not Launcher.DATA_PARALLEL:
        return
    # Hosts without ranks are helpers, and may be of any type.
    without = sorted(
        {host.instance_type for host in plan.hosts if host.ranks != 0 and not _has_gpus(host.instance_type)}
    )
    if without:
        raise OptionError(
            f"instance_type: {', '.join(without)} has no GPUs, and distribution's dataparallel trains on GPUs; take a "
            "type of the families p or g (ml.g5.12xlarge), or mpi for processors"
        )


def _has_gpus(instance_type: str) -> bool:
    return _GPU_TYPE.fullmatch(instance_type) is not None


def _check_channels(plan: JobPlan) -> None:
    channels = plan.channels
    names = [channel.name for channel in channels]
    code = plan.source is not None and plan.options.enable_network_isolation
    if code and CODE_CHANNEL in names:
        raise InputError(f"channel {CODE_CHANNEL!r}: an isolated container gets its code under that name; rename yours")
    key = needs_key(plan)
    if key and KEY_CHANNEL in names:
        raise InputError(f"channel {KEY_CHANNEL!r}: the hosts get a key under that name; rename yours")
    if (count := len(names) + code + key) > MAX_CHANNELS:
        own = [what for what, counts in (("the code's", code), ("the hosts' key's", key)) if counts]
        beside = f" ({' and '.join(own)} own included)" if own else ""
        raise InputError(
            f"inputs: {count} channels{beside}; the service takes {MAX_CHANNELS}. Put several folders under one address"
        )
    for channel in channels:
        if channel.file_system is None:
            _check_channel(channel)
        elif plan.options.subnets is None:
            raise OptionError(
                f"channel {channel.name!r}: {channel.input.s3_data} is reached from a network of the account only; "
                "give subnets and security_group_ids that it is reached from"
            )


def _check_channel(channel: Channel) -> None:
    given = channel.input
    if given.target_attribute_name is not None:
        raise UnsupportedError(
            f"channel {channel.name!r}: target_attribute_name: a training job's channel has no such member; "
            "leave it out"
        )
    if channel.path is None:
        if not given.s3_data.startswith("s3://"):
            raise InputError(f"channel {channel.name!r}: {given.s3_data} is neither a local path nor an s3:// address")
    elif not Path(channel.path).exists():
        raise InputError(f"channel {channel.name!r}: {channel.path}: no such file or folder")
    elif given.s3_data_type != "S3Prefix" and not Path(channel.path).is_file():
        raise InputError(
            f"channel {channel.name!r}: {channel.path} is a folder, and a {given.s3_data_type} is one file"
        )
