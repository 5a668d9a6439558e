"""The table of what runs which setting of a `distribution`: our libraries, or those in AWS's images on `ml.*`.

    unserved(distribution, Library.HERRINGBONE, "pytorch")
    {'distribution.smdistributed.modelparallel.parameters.fp16': "Herringbone's library has no fp16: ..."}

docs/look-up/distribution.md shows the table, and a test compares the two. A plan refuses what the job's library
does not run. The libraries read the same table when a script calls `smp.init`, because a plan does not know every job's
framework.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from herringbone_contract.launcher import Launcher
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_contract.strategies import Distribution, Framework

PARAMETERS = "distribution.smdistributed.modelparallel.parameters"
_DATA_PARALLEL = "distribution.smdistributed.dataparallel"
# The keys of `smdistributed.dataparallel` that AWS's library knows.
_AWS_DATA_PARALLEL = ("enabled", "custom_mpi_options")


class Library(Enum):
    """The libraries that a job's ranks find: ours, or those that AWS's own images contain."""

    HERRINGBONE = "Herringbone's library"
    AWS = "the library in AWS's image"


NONE: frozenset[str] = frozenset()
PYTORCH = frozenset({"pytorch"})
TENSORFLOW = frozenset({"tensorflow"})
BOTH = PYTORCH | TENSORFLOW


class Setting(NamedTuple):
    """The frameworks for which each library runs a key.

    `off` is the value that asks for nothing, and is accepted everywhere; without one every value asks for something.
    `instead` is the remedy where our library does not run the key.
    """

    herringbone: frozenset[str]
    aws: frozenset[str]
    off: object = UNSET
    instead: str = "leave it out"

    def frameworks(self, library: Library) -> frozenset[str]:
        return self.aws if library is Library.AWS else self.herringbone


# Sources of AWS's part: SageMaker Python SDK v2.130.0, smd_model_parallel_general.rst.
VERSION1: dict[str, Setting] = {
    "partitions": Setting(BOTH, BOTH),
    "pipeline_parallel_degree": Setting(BOTH, PYTORCH),
    "microbatches": Setting(BOTH, BOTH),
    "active_microbatches": Setting(BOTH, PYTORCH),
    "pipeline": Setting(BOTH, BOTH),
    "optimize": Setting(BOTH, BOTH),
    "placement_strategy": Setting(BOTH, BOTH),
    "auto_partition": Setting(BOTH, BOTH),
    "default_partition": Setting(BOTH, BOTH),
    "load_partition": Setting(BOTH, BOTH),
    "partition_file": Setting(BOTH, BOTH),
    "contiguous": Setting(TENSORFLOW, TENSORFLOW),
    "horovod": Setting(TENSORFLOW, TENSORFLOW, False, "PyTorch averages replicas with 'ddp': True"),
    "ddp": Setting(PYTORCH, PYTORCH, False, "TensorFlow averages replicas without it, or with 'horovod': True"),
    "ddp_port": Setting(PYTORCH, PYTORCH),
    "ddp_dist_backend": Setting(PYTORCH, PYTORCH),
    "memory_weight": Setting(BOTH, PYTORCH),
    "deterministic_server": Setting(
        NONE, PYTORCH, False, "results do not depend on the order of a rank's operations here; leave it out"
    ),
    "tensor_parallel_degree": Setting(PYTORCH, PYTORCH, 1),
    "offload_activations": Setting(PYTORCH, PYTORCH, False),
    "activation_loading_horizon": Setting(PYTORCH, PYTORCH),
    "fp16": Setting(PYTORCH, PYTORCH, False),
    "bf16": Setting(PYTORCH, PYTORCH, False),
    "fp16_params": Setting(PYTORCH, PYTORCH, False),
    "shard_optimizer_state": Setting(PYTORCH, PYTORCH, False),
    "prescaled_batch": Setting(PYTORCH, PYTORCH, False),
    "skip_tracing": Setting(PYTORCH, PYTORCH),
    "delayed_parameter_initialization": Setting(PYTORCH, PYTORCH),
    "sharded_data_parallel_degree": Setting(PYTORCH, PYTORCH, 1),
    "sdp_reduce_bucket_size": Setting(PYTORCH, PYTORCH),
    "sdp_param_persistence_threshold": Setting(PYTORCH, PYTORCH),
    "sdp_max_live_parameters": Setting(PYTORCH, PYTORCH),
    "sdp_hierarchical_allgather": Setting(PYTORCH, PYTORCH),
    "sdp_gradient_clipping": Setting(PYTORCH, PYTORCH),
}
# Source of AWS's part: the developer guide, "SMP v2 core features and configuration".
VERSION2: dict[str, Setting] = {
    "hybrid_shard_degree": Setting(PYTORCH, PYTORCH),
    "sm_activation_offloading": Setting(PYTORCH, PYTORCH, False),
    "activation_loading_horizon": Setting(PYTORCH, PYTORCH),
    "fsdp_cache_flush_warnings": Setting(PYTORCH, PYTORCH, False),
    "allow_empty_shards": Setting(PYTORCH, PYTORCH, False),
    "tensor_parallel_degree": Setting(PYTORCH, PYTORCH, 1),
    "context_parallel_degree": Setting(PYTORCH, PYTORCH, 1),
    "expert_parallel_degree": Setting(
        NONE, PYTORCH, 1, "expert parallelism is not there; shard the model with hybrid_shard_degree"
    ),
    "random_seed": Setting(PYTORCH, PYTORCH),
}
# Version 2 is built on torch's `fully_shard` and DTensor. These keys of version 1 are not, but were never run with an
# older torch.
_NEED_RECENT_TORCH = ("tensor_parallel_degree", "sharded_data_parallel_degree")
RECENT_TORCH = (2, 6)
# Values that fewer libraries run than their key.
_VALUES: dict[tuple[str, object], Setting] = {
    ("pipeline", "zero_bubble"): Setting(PYTORCH, NONE, instead="use interleaved"),
    ("ddp_dist_backend", "gloo"): Setting(PYTORCH, NONE),
    ("ddp_port", 0): Setting(NONE, PYTORCH, instead="ranks cannot agree on a port that the system picks; name one"),
}

_AWS_HAS = "AWS's own images run it on ml.*"
_AWS_LACKS = "an addition of Herringbone's, which AWS's image would ignore; leave it out, or name an image of ours"


def unserved(distribution: Distribution, library: Library, framework: Framework | None) -> dict[str, str]:
    """Return the settings that the job's library would not run, each by its path with the reason and a remedy.

    >>> from herringbone_contract.distribution import parse
    >>> list(unserved(parse({"pytorchxla": {"enabled": True}}), Library.HERRINGBONE, "pytorch"))
    ['distribution.pytorchxla']

    `framework` is None where the job's script may use any. Pure.
    """
    refusals = {}
    if library is Library.AWS:
        refusals = {f"{_DATA_PARALLEL}.{key}": _AWS_LACKS for key in extra_data_parallel_keys(distribution)}
    elif distribution.launcher is Launcher.PYTORCH_XLA:
        refusals["distribution.pytorchxla"] = f"Herringbone starts no PyTorch/XLA. {_AWS_HAS}"
    parameters = distribution.model_parallel or distribution.model_parallel_v2
    if parameters is None:
        return refusals
    reasons = unserved_parameters(parameters, library, framework)
    if isinstance(parameters, ModelParallelParameters):
        reasons |= _without_effect(parameters) if library is Library.HERRINGBONE else _excluded_by_aws(parameters)
    return refusals | {f"{PARAMETERS}.{key}": reason for key, reason in reasons.items()}


def unserved_parameters(
    parameters: ModelParallelParameters | ModelParallelV2Parameters, library: Library, framework: Framework | None
) -> dict[str, str]:
    """Return the parameters of either version that a library does not run for a framework, with reason and remedy.

    >>> unserved_parameters(ModelParallelParameters(partitions=2, bf16=False), Library.HERRINGBONE, "pytorch")
    {}
    """
    refusals = {}
    table = VERSION1 if isinstance(parameters, ModelParallelParameters) else VERSION2
    for key, value in msgspec.structs.asdict(parameters).items():
        if value is UNSET or value == table[key].off:
            continue
        if not _runs(table[key], library, framework):
            refusals[key] = _reason(key, table[key], library, framework)
        elif (setting := _VALUES.get((key, value))) and not _runs(setting, library, framework):
            refusals[key] = _reason(f"{key} {value!r}", setting, library, framework)
    return refusals


def needs_recent_torch(distribution: Distribution) -> str | None:
    """Return the setting for which our library needs `RECENT_TORCH`; None where any torch will do.

    >>> from herringbone_contract.distribution import parse
    >>> needs_recent_torch(parse({"torch_distributed": {"enabled": True}}))
    """
    if distribution.model_parallel_v2 is not None:
        return "distribution.smdistributed.modelparallel"
    parameters = distribution.model_parallel
    for key in _NEED_RECENT_TORCH if parameters is not None else ():
        if getattr(parameters, key) not in (UNSET, VERSION1[key].off):
            return f"{PARAMETERS}.{key}"
    return None


def extra_data_parallel_keys(distribution: Distribution) -> list[str]:
    """Return the keys of `smdistributed.dataparallel` in use that AWS's library does not know, such as `helpers`."""
    if distribution.data_parallel is None:
        return []
    return [key for key in msgspec.to_builtins(distribution.data_parallel) if key not in _AWS_DATA_PARALLEL]


def _runs(setting: Setting, library: Library, framework: Framework | None) -> bool:
    frameworks = setting.frameworks(library)
    # A script of Hugging Face, or of an estimator without a framework, may use either.
    return framework in frameworks if framework in BOTH else bool(frameworks)


def _reason(what: str, setting: Setting, library: Library, framework: Framework | None) -> str:
    where = f" for {framework}" if setting.frameworks(library) else ""
    if library is Library.AWS:
        return f"{library.value} has no {what}{where}: leave it out"
    aws = f". {_AWS_HAS}" if _runs(setting, Library.AWS, framework) else ""
    return f"{library.value} has no {what}{where}: {setting.instead}{aws}"


def _excluded_by_aws(parameters: ModelParallelParameters) -> dict[str, str]:
    """Return the parameters that AWS's library refuses together with another one, and ours combines."""
    settings = parameters.resolved()
    if settings.sharded > 1 and settings.partitions > 1:
        return {
            "sharded_data_parallel_degree": f"{settings.sharded} excludes pipeline parallelism in {Library.AWS.value},"
            f" and there are {settings.partitions} partitions: set partitions to 1, leave it out, or name an image of"
            " ours"
        }
    return {}


def _without_effect(parameters: ModelParallelParameters) -> dict[str, str]:
    """Return the parameters that our library would read and not use, because of another one."""
    refusals = {}
    settings = parameters.resolved()
    if settings.partition_file is not None and not (settings.auto_partition and settings.partitions > 1):
        refusals["partition_file"] = (
            "keeps an automatic partition, and this job has none: set auto_partition, with more than one partition, or"
            " leave partition_file and load_partition out"
        )
    if settings.sharded == 1:
        refusals |= {
            key: "concerns sharded parameters, and sharded_data_parallel_degree is 1: set the degree to 2 or more, or"
            " leave it out"
            for key in VERSION1
            if key.startswith("sdp_") and getattr(parameters, key) is not UNSET
        }
    elif settings.partitions > 1 and parameters.sdp_max_live_parameters is not UNSET:
        refusals["sdp_max_live_parameters"] = (
            "has no effect with more than one partition, where each rank has its whole partition during a step: leave"
            " it out, or set partitions to 1"
        )
    active = parameters.active_microbatches
    if settings.pipeline == "simple" and active is not UNSET and active < settings.microbatches:
        refusals["active_microbatches"] = (
            "pipeline 'simple' runs every forward before the first backward, so all microbatches are active: use"
            " interleaved, or leave it out"
        )
    if settings.offload_activations and 1 in (settings.microbatches, settings.active_microbatches):
        refusals["offload_activations"] = (
            "moves activations to the host's memory while other microbatches run, and here each backward comes right"
            " after its forward: set microbatches and active_microbatches to more than 1, or leave it out"
        )
    return refusals
