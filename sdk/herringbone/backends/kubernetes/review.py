"""The review of a plan for `k8s:NAMESPACE`: options that it cannot serve, or not in this release yet. Asks nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path

from herringbone.aws.location import is_s3
from herringbone.backends.kubernetes.claims import SCHEME, is_claim
from herringbone.backends.kubernetes.files import check_size
from herringbone.backends.kubernetes.names import namespace_of, settings_of
from herringbone.backends.kubernetes.pods import places_of
from herringbone.backends.review.checks import NO_MEMORY, check_served, unused_of
from herringbone.backends.review.settings import check_ranks, refuse_of_image
from herringbone.code.files import check_source
from herringbone.plan.channels import is_augmented, is_piped
from herringbone.plan.host_tree import channels_of
from herringbone.plan.options.kubernetes import KubernetesSettings
from herringbone.plan.plan import JobPlan, refuse
from herringbone.plan.s3 import uses_s3, written
from herringbone.s3.names import split
from herringbone.system.near import alternatives
from herringbone_contract.constants import SHARED_MODEL_DIR
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.faults.policies import REPLAN

_NAME = "kubernetes"
_UNUSED = ("framework_version", "py_version", "bake_requirements", "code_location")
# Options that have no effect on other backends, and do on this one.
_USED = ("kubernetes", "min_instance_count", "retry_without_client")
_NOT_YET = "not in this release yet on Kubernetes; leave it out"
_REFUSED = {
    **NO_MEMORY,
    "enable_network_isolation": "pods of a cluster share its network",
    "encrypt_inter_container_traffic": "pods of a cluster talk unencrypted",
    "container_entry_point": "pods run a script; give entry_point",
    "container_arguments": "pods run a script; give hyperparameters",
    **dict.fromkeys(("tensorboard_output_config", "model_uri"), _NOT_YET),
    "code_location": "pods get the code from a Secret or a claim; for code in S3 give source_dir='s3://...'",
}
_NO_ACCOUNT = (
    "only a pod with a token can start another attempt; give kubernetes={'service_account': NAME}, with the Role that "
    "`herringbone hosts check k8s:NAMESPACE --role` prints"
)
# The grammar of names of images, with a tag or a digest.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
_MOVING = re.compile(r"(?:.*/)?[^/:@]+(?::latest)?")


def check(plan: JobPlan, *, exclude: Path) -> None:
    """Raise the `UsageError` that can be seen without a cluster; `exclude` is the folder of jobs, which is no code."""
    check_served(_NAME, plan, _REFUSED)
    namespace_of(plan)
    if plan.source is None:
        raise UnsupportedError(f"image_uri: {_NAME} runs a script, not an image's own program: give entry_point")
    _check_image(plan)
    refuse_of_image(_NAME, plan)
    check_ranks(plan, plan.options.gpus or 0)
    _check_workload(plan)
    _check_retries(plan)
    check_source(plan.source, exclude=exclude)
    _check_places(plan)


def unused(plan: JobPlan) -> tuple[str, ...]:
    """Return the options of the plan that have no effect here."""
    return unused_of(plan, _UNUSED, used=_USED)


def _check_image(plan: JobPlan) -> None:
    image = plan.arguments.image_uri
    if not image:
        raise OptionError(
            "image_uri: missing; pods run an image that `herringbone images build` made, and `herringbone images push`"
            " has brought to a registry that the cluster reaches"
        )
    if not _IMAGE.fullmatch(image):
        raise OptionError(f"image_uri: {image!r} is no image of a registry; write registry/name:tag")


def _check_workload(plan: JobPlan) -> None:
    settings = settings_of(plan)
    if settings.gpu_resource != KubernetesSettings().gpu_resource and not plan.options.gpus:
        raise OptionError(f"kubernetes: gpu_resource {settings.gpu_resource!r}: how many? give gpus, too")
    if settings.workload == "trainjob" and len({host.group for host in plan.hosts}) > 1:
        raise UnsupportedError("instance_groups: a TrainJob has one kind of hosts; leave workload 'trainjob' out")
    if settings.local_queue is not None and settings.workload == "job" and len(plan.hosts) > 1:
        raise OptionError(
            f"kubernetes: local_queue: Kueue admits the Jobs of {len(plan.hosts)} hosts one by one, so some would wait"
            " for others; give workload 'jobset' or 'trainjob', which is admitted as a whole"
        )


def _check_retries(plan: JobPlan) -> None:
    options, refusals = plan.options, dict[str, str]()
    if options.max_retry_attempts and settings_of(plan).service_account is None:
        refusals["max_retry_attempts"] = _NO_ACCOUNT
    elif options.max_retry_attempts and settings_of(plan).workload != "job":
        refusals["max_retry_attempts"] = f"with workload '{settings_of(plan).workload}' it is {_NOT_YET}"
    if options.retry_without_client is False:
        refusals["retry_without_client"] = "the job's controller pod retries, and no client does; leave it out"
    if REPLAN in options.fault_policies.values():
        refusals["fault_policies"] = f"{REPLAN}: {_NOT_YET}"
    refuse(_NAME, refusals)


def _is_place(address: str | None) -> bool:
    return is_claim(address) or is_s3(address)


def _check_places(plan: JobPlan) -> None:
    """Check where data comes from, and where results go."""
    options, refusals = plan.options, dict[str, str]()
    if not _is_place(options.output_path):
        raise OptionError(
            f"output_path: {options.output_path or 'missing'}: a pod's files are gone with it, so give a folder of a "
            f"claim that all pods can mount, {SCHEME}CLAIM/FOLDER, or s3://BUCKET/PREFIX"
        )
    if options.checkpoint_s3_uri is not None and not _is_place(options.checkpoint_s3_uri):
        refusals["checkpoint_s3_uri"] = f"{options.checkpoint_s3_uri} is neither {SCHEME}CLAIM/FOLDER nor in S3"
    for name, address in written(plan).items():
        if not split(address, name).key and name == "checkpoint_s3_uri":
            refusals[name] = f"{address} is a whole bucket, all of which would be fetched; add a prefix"
    if uses_s3(plan) and options.sagemaker_session is not None:
        refusals["sagemaker_session"] = (
            "pods find their credentials for S3 by themselves: in the job's environment, or by the service account's "
            "web identity; leave it out"
        )
    if len(plan.hosts) > 1 and plan.hyperparameters.get("model_dir") == json.dumps(SHARED_MODEL_DIR):
        refusals["model_dir"] = f"pods share no folder {SHARED_MODEL_DIR}; give model_dir='/opt/ml/model'"
    for channel in plan.channels:
        name = f"channel {channel.name!r}"
        if is_piped(channel, plan) or is_augmented(channel):
            refusals[name] = f"Pipe mode and AugmentedManifestFile are {_NOT_YET}"
        elif channel.sharded and not is_s3(channel.input.s3_data):
            refusals[name] = "ShardedByS3Key divides channels in S3 alone among pods; leave distribution out"
        elif (channel.path is not None or is_claim(channel.input.s3_data)) and not all(
            channel in channels_of(plan, host) for host in plan.hosts
        ):
            refusals[name] = f"instance_groups of a channel from here or a claim are {_NOT_YET}"
        elif channel.path is None and not _is_place(channel.input.s3_data):
            refusals[name] = f"{channel.input.s3_data} is neither {SCHEME}CLAIM/FOLDER nor in S3"
        elif channel.path is not None and not Path(channel.path).exists():
            raise InputError(f"{name}: {channel.path}: no such file or folder{alternatives(Path(channel.path))}")
        elif is_s3(channel.input.s3_data):
            split(channel.input.s3_data, name)
    refuse(_NAME, refusals)
    check_size(plan)
    places_of(plan)
