"""Check that a job's libraries run every setting of its `distribution`."""

from __future__ import annotations

import re

from herringbone.aws.location import is_s3
from herringbone.plan.frameworks import script_framework
from herringbone.plan.plan import JobPlan, refuse
from herringbone_contract.distribution import check_layout
from herringbone_contract.errors import DistributionError, OptionError, UnsupportedError
from herringbone_contract.faults.policies import REPLAN, ROLL_BACK
from herringbone_contract.layout import ranks_on_host
from herringbone_contract.model_parallel.values import value_or
from herringbone_contract.served import PARAMETERS, Library, unserved

# The repositories of AWS's Deep Learning Containers for training, in any registry. Offline, only the name tells them
# from other images.
_AWS_IMAGE = re.compile(
    r"(?:.+/)?(?:(?:huggingface-)?(?:pytorch|tensorflow|mxnet)(?:-trcomp)?-training|smdistributed-modelparallel)"
    r"(?:[:@][^/]+)?"
)


def is_of_aws(image_uri: str) -> bool:
    """Return whether an image is one of AWS's Deep Learning Containers, or a copy that keeps its repository's name.

    >>> is_of_aws("763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0.0-gpu-py310")
    True
    """
    return _AWS_IMAGE.fullmatch(image_uri) is not None


def refuse_of_image(backend: str, plan: JobPlan) -> None:
    """Raise `UnsupportedError` for settings that the job's image would not run, where its name says that it is AWS's.

    Images of other names show only to an engine whether they are Herringbone's.
    """
    image = plan.arguments.image_uri
    if image and is_of_aws(image):
        refuse(f"{backend}, with {image}, which was not built by Herringbone,", unserved_settings(plan, Library.AWS))


def check_ranks(plan: JobPlan, gpus: int | None) -> None:
    """Raise `DistributionError` for settings that the GPUs of the hosts do not fit: degrees of parallelism, nccl.

    `gpus` is the number of GPUs of a host; None where only the host itself will know it, and refuses the job. Pure.
    """
    training = [host for host in plan.hosts if host.ranks != 0]
    parameters = plan.distribution.model_parallel
    if gpus == 0 and parameters is not None and parameters.ddp_dist_backend == "nccl":
        raise DistributionError(
            f"{PARAMETERS}.ddp_dist_backend: nccl needs GPUs, and {training[0].instance_type} has none;"
            " use gloo or auto"
        )
    if gpus is not None and training[0].ranks is None:
        ranks = ranks_on_host(plan.distribution.launcher, plan.distribution.processes_per_host, num_gpus=gpus)
        check_layout(plan.distribution, hosts=len(training), processes_per_host=ranks)


def unserved_settings(plan: JobPlan, library: Library) -> dict[str, str]:
    """Return, as refusals, the settings of the plan's `distribution` that the library would not run. Pure.

    refuse("local_process", unserved_settings(plan, Library.HERRINGBONE))
    """
    framework = script_framework(plan)
    refusals = unserved(plan.distribution, library, framework)
    if library is Library.HERRINGBONE and framework == "pytorch":
        refusals |= _replicas_without_average(plan)
    return refusals


def named_place(plan: JobPlan, prefix: str, pattern: re.Pattern[str], where: str, noun: str, example: str) -> str:
    """Return what a job's instance type names behind its prefix, such as a partition, which all hosts have in common.

    Raises `OptionError` or `UnsupportedError`, in the words of the backend `where`.
    """
    types = list(dict.fromkeys(host.instance_type for host in plan.hosts))
    if len(types) > 1:
        raise UnsupportedError(f"instance_groups: a job on {where} has one {noun}, not {' and '.join(types)}")
    name = types[0].removeprefix(prefix)
    if not pattern.fullmatch(name):
        raise OptionError(f"instance_type {types[0]!r}: not the name of a {noun}; write for example {example!r}")
    return name


def unserved_answers(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, the answers to faults that this job's libraries or checkpoints cannot give. Pure."""
    answers, framework = plan.options.fault_policies.values(), script_framework(plan)
    why = ""
    if ROLL_BACK in answers and framework not in (None, "pytorch"):
        why = f"{ROLL_BACK}: scripts of {framework} cannot pass over data; answer with stop or restart"
    elif ROLL_BACK in answers and is_s3(plan.options.checkpoint_s3_uri):
        why = (
            f"{ROLL_BACK}: what it sets aside would stay the newest checkpoint in S3; give a folder, or another answer"
        )
    elif REPLAN in answers and framework != "pytorch":
        why = f"{REPLAN}: only layouts of PyTorch's estimators are predicted; answer with fail or restart"
    elif REPLAN in answers and plan.options.min_instance_count is not None:
        why = f"{REPLAN}: its layouts are of all hosts, and min_instance_count allows fewer; leave one of both out"
    return {"fault_policies": why} if why else {}


def _replicas_without_average(plan: JobPlan) -> dict[str, str]:
    parameters = plan.distribution.model_parallel
    if parameters is None or value_or(parameters.ddp, False):
        return {}
    ranks = sum(host.ranks or 0 for host in plan.hosts)
    partitions = parameters.pipeline_degree
    if ranks <= partitions:
        return {}
    return {
        f"{PARAMETERS}.ddp": f"{ranks} ranks with {partitions} partitions make {ranks // partitions} replicas of the"
        f" pipeline, and nothing would average their gradients: set 'ddp': True, or start {partitions} ranks"
    }
