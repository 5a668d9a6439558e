"""Translates between a `distribution` dict and a `Layout`: the facts of a dict on which predictions depend.

    layout = layout_of(parse({"torch_distributed": {"enabled": True}}), ranks=8, measurement=measurement)
    layout.mesh                                     # Mesh(replicate=8, ...)
    distribution_of(layout, base={}, ranks_per_host=8)

A layout that nobody can predict, or that the script cannot run, raises an error with the reason.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from herringbone_contract.distribution import Distribution, Launcher
from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.model_parallel.values import value_or
from herringbone_contract.model_parallel.version1 import ModelParallelParameters, ResolvedModelParallel
from herringbone_contract.model_parallel.version2 import ResolvedModelParallelV2
from herringbone_parallel.core.prediction.measurement import Measurement

_PLAIN_CHOICES = (
    "torch_distributed, smdistributed.dataparallel, or smdistributed.modelparallel, if the script uses that library"
)


class Library(Enum):
    """The library that runs a script's ranks together."""

    # One rank, or ranks that know nothing of each other.
    ALONE = "one rank"
    # torch's DistributedDataParallel, which Trainer and accelerate use as well.
    DDP = "DistributedDataParallel"
    # The script's own calls of torch's fully_shard.
    FULLY_SHARD = "fully_shard"
    DATA_PARALLEL = "smdistributed.dataparallel"
    # Versions 1 and 2 of smdistributed.modelparallel.
    VERSION1 = "smdistributed.modelparallel, version 1"
    VERSION2 = "smdistributed.modelparallel, version 2"


# The wrappers of a script (`Measurement.wrapper`) that each library accepts. "" is a script that wraps nothing while it
# is measured as one rank; it may still wrap its model when there are more.
_WRAPPERS = {
    Library.DDP: ("DistributedDataParallel", "accelerate", ""),
    Library.FULLY_SHARD: ("fully_shard",),
    Library.DATA_PARALLEL: ("DistributedDataParallel", "accelerate", ""),
    Library.VERSION1: ("smp",),
    Library.VERSION2: ("fully_shard", "accelerate", "smp", ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """The figures of version 1's sharded data parallelism, in elements.

    At most `bucket` gradients are reduced together. Parameters with fewer than `whole` elements stay whole on every
    rank. At most `live` elements are gathered at a time.
    """

    bucket: int = 500_000_000
    whole: int = 1_000_000
    live: int = 1_000_000_000


_ONE_RANK, _LIMITS = Mesh(), ShardLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The division of a training job over its ranks.

    >>> Layout(mesh=Mesh(replicate=2), library=Library.DDP).mesh.ranks
    2

    `batch_scale` is the number of samples that pass through a rank's layers in a step, divided by the measured number;
    multiply it to predict for another batch. `microbatches` is the number of passes in a step. `pipeline`, `active`,
    `memory_weight` and `placement` are those of version 1, as are `limits` and `shard_optimizer_state`.
    `checkpointing` recomputes the measurement's `Module.checkpoint` in the backward, in addition to what the script
    recomputes by itself; no dict asks for it alone, so `distribution_of` does not write it. With `offloading`,
    activations leave the device, and come back `horizon` tasks (version 1) or layers (version 2) before their backward.
    `aggregation` backwards are added up before their gradients are summed over the ranks.
    """

    mesh: Mesh = _ONE_RANK
    library: Library = Library.ALONE
    batch_scale: float = 1.0
    microbatches: int = 1
    pipeline: str = "interleaved"
    active: int = 1
    memory_weight: float = 0.8
    placement: str = "DPT"
    prescaled_batch: bool = False
    checkpointing: bool = False
    offloading: bool = False
    horizon: int = 0
    shard_optimizer_state: bool = False
    limits: ShardLimits = _LIMITS
    aggregation: int = 1

    @property
    def batches(self) -> int:
        """The number of batches that the ranks of the job read in a step, one for each rank that reads its own."""
        # The ranks of a tensor group of version 1 each read a batch, and compute on all of them together.
        own = self.library is Library.VERSION1 and not self.prescaled_batch
        return self.mesh.batches * (self.mesh.tensor if own else 1)

    @property
    def live(self) -> int:
        """The largest number of microbatches that wait for their backward at once on any rank."""
        return self.microbatches if self.pipeline == "simple" else min(self.active, self.microbatches)


def layout_of(distribution: Distribution, ranks: int, measurement: Measurement) -> Layout:
    """Return the layout that a job of so many ranks has; a dict that starts no ranks together needs `ranks` 1.

        layout_of(parse({"mpi": {...}, "smdistributed": {"modelparallel": {...}}}), 4, measurement).mesh.pipeline

    Raises `ParallelError` for what is not predicted, or what the measured script cannot run, with the reason. Raises
    `DistributionError` when the degrees do not divide the ranks.
    """
    if "torch" not in measurement.framework:
        raise ParallelError(
            f"the script was measured with {measurement.framework}, and only PyTorch is predicted. Leave measure out"
        )
    library = _library(distribution, ranks, measurement)
    _check_wrapper(library, ranks, measurement)
    if library is Library.VERSION1:
        assert distribution.model_parallel is not None
        layout = _of_version1(distribution.model_parallel.resolved(), ranks)
    elif library is Library.VERSION2:
        assert distribution.model_parallel_v2 is not None
        layout = _of_version2(distribution.model_parallel_v2.resolved(), ranks)
    elif library is Library.FULLY_SHARD:
        layout = Layout(mesh=Mesh(shard=ranks), library=library)
    else:
        strategy = distribution.data_parallel
        every = 1 if strategy is None else value_or(strategy.aggregation_frequency, 1)
        layout = Layout(mesh=Mesh(replicate=ranks), library=library, aggregation=every)
    if library is not Library.VERSION1:
        layout = replace(layout, microbatches=measurement.microbatches)
    return replace(layout, batch_scale=_batch_scale(layout, measurement))


def distribution_of(layout: Layout, base: Mapping[str, Any], *, ranks_per_host: int) -> dict[str, Any]:
    """Return the dict that asks for a layout: `base`, a dict of the same job or {}, with the keys that differ.

    >>> distribution_of(Layout(mesh=Mesh(replicate=4), library=Library.DDP), {}, ranks_per_host=2)
    {'torch_distributed': {'enabled': True}}

    Settings of `base` on which a layout does not depend are kept, if they belong to the same library.
    """
    distribution = copy.deepcopy(dict(base))
    if layout.library in (Library.ALONE, Library.DDP, Library.FULLY_SHARD):
        # torch's own libraries run under these launchers as well, if the job has one of them.
        launchers = ("mpi", "torch_distributed")
        own = {key: value for key, value in distribution.items() if key in launchers and _enabled(value)}
        if len(own) != 1:
            own = {} if layout.library is Library.ALONE else {"torch_distributed": {"enabled": True}}
        if own and "instance_groups" in distribution:
            own["instance_groups"] = distribution["instance_groups"]
        return own
    kept = {key: value for key, value in distribution.items() if key == "instance_groups"}
    smdistributed = distribution.get("smdistributed") or {}
    if layout.library is Library.DATA_PARALLEL:
        if _enabled(distribution.get("pytorchddp")) and layout.aggregation == 1:
            return {**kept, "pytorchddp": distribution["pytorchddp"]}
        if _enabled(distribution.get("mpi")) and "dataparallel" in smdistributed:
            kept["mpi"] = distribution["mpi"]
        strategy = {**(smdistributed.get("dataparallel") or {}), "enabled": True}
        _set(strategy, "aggregation_frequency", layout.aggregation, default=1)
        return {**kept, "smdistributed": {"dataparallel": strategy}}
    parallel = {**(smdistributed.get("modelparallel") or {}), "enabled": True}
    if layout.library is Library.VERSION1:
        same = _enabled(distribution.get("mpi")) and isinstance(parallel.get("parameters"), dict)
        parallel["parameters"] = _parameters1(layout, parallel["parameters"] if same else {})
        launcher = {**(distribution.get("mpi") or {}), "enabled": True}
        launcher.setdefault("processes_per_host", ranks_per_host)
        return {**kept, "mpi": launcher, "smdistributed": {"modelparallel": parallel}}
    same = _enabled(distribution.get("torch_distributed")) and isinstance(parallel.get("parameters"), dict)
    parallel["parameters"] = _parameters2(layout, parallel["parameters"] if same else {})
    return {**kept, "torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": parallel}}


def _library(distribution: Distribution, ranks: int, measurement: Measurement) -> Library:
    launcher = distribution.launcher
    if launcher in (Launcher.PARAMETER_SERVER, Launcher.MULTI_WORKER_MIRRORED, Launcher.PYTORCH_XLA):
        raise ParallelError(f"{launcher.value} is not predicted: PyTorch trains with {_PLAIN_CHOICES}")
    if distribution.model_parallel is not None:
        return Library.VERSION1
    if distribution.model_parallel_v2 is not None:
        return Library.VERSION2
    if measurement.wrapper == "fully_shard":
        return Library.FULLY_SHARD if ranks > 1 else Library.ALONE
    if launcher is Launcher.DATA_PARALLEL:
        return Library.DATA_PARALLEL
    if launcher is Launcher.MPI and ranks > 1 and measurement.wrapper == "":
        raise ParallelError(
            "mpi alone is not predicted: the script wraps its model in nothing that torch knows, and Horovod's sums are"
            f" not predicted. Predicted are {_PLAIN_CHOICES}"
        )
    return Library.DDP if ranks > 1 else Library.ALONE


def _check_wrapper(library: Library, ranks: int, measurement: Measurement) -> None:
    """Raise `ParallelError` when the measured script cannot run on the library's ranks."""
    wrapper = measurement.wrapper
    if library is Library.ALONE:
        if wrapper == "smp":
            raise ParallelError(
                "the script uses smdistributed.modelparallel, and the dict does not enable it: add modelparallel"
            )
        return
    if wrapper not in _WRAPPERS[library]:
        own = f"wraps its model with {wrapper}" if wrapper else "wraps its model in nothing"
        raise ParallelError(f"the script {own}, so {library.value} cannot run it. {_remedy(library)}")
    # With one rank a script may leave out a wrapper that it has with several; with several measured ranks it did not.
    if library in (Library.DDP, Library.DATA_PARALLEL) and not wrapper and ranks > 1 and measurement.ranks > 1:
        raise ParallelError(
            f"the script shares no gradients, so its {ranks} ranks would each train a model of their own. Wrap the"
            " model in DistributedDataParallel"
        )


def _remedy(library: Library) -> str:
    if library is Library.VERSION1:
        return "Use smp.DistributedModel in the script, or leave modelparallel out"
    if library is Library.VERSION2:
        return "Use torch.sagemaker's shard in the script, or leave modelparallel out"
    return "Use the dict of that library, or wrap the model in DistributedDataParallel"


def _of_version1(settings: ResolvedModelParallel, ranks: int) -> Layout:
    if settings.pipeline == "_only_forward":
        raise ParallelError("pipeline '_only_forward' trains nothing, so there is no step to predict")
    if settings.partitions > 1 and not settings.auto_partition:
        raise ParallelError(
            "auto_partition False is not predicted: the script places the modules itself. Leave it out to predict the"
            " automatic partition"
        )
    return Layout(
        mesh=settings.mesh(ranks),
        library=Library.VERSION1,
        microbatches=settings.microbatches,
        pipeline=settings.pipeline,
        active=settings.active_microbatches,
        memory_weight=settings.memory_weight,
        placement=settings.placement,
        prescaled_batch=settings.prescaled_batch,
        offloading=settings.offload_activations,
        horizon=settings.activation_loading_horizon if settings.offload_activations else 0,
        shard_optimizer_state=settings.shard_optimizer_state,
        limits=ShardLimits(
            bucket=settings.sdp_reduce_bucket_size,
            whole=settings.sdp_param_persistence_threshold,
            live=settings.sdp_max_live_parameters,
        ),
    )


def _of_version2(settings: ResolvedModelParallelV2, ranks: int) -> Layout:
    offloading = settings.sm_activation_offloading
    return Layout(
        mesh=settings.mesh(ranks),
        library=Library.VERSION2,
        # `shard` recomputes the blocks whose inputs it offloads.
        checkpointing=offloading,
        offloading=offloading,
        horizon=settings.activation_loading_horizon if offloading else 0,
    )


def _batch_scale(layout: Layout, measurement: Measurement) -> float:
    scale = measurement.ranks / layout.batches if measurement.batch_divides else 1.0
    own = layout.library is Library.VERSION1 and not layout.prescaled_batch
    return scale * (layout.mesh.tensor if own else 1)


def _parameters1(layout: Layout, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return version 1's parameters; a key that `base` has not is written only if its default differs."""
    names = set(ModelParallelParameters.__struct_fields__)
    parameters = {key: value for key, value in base.items() if key in names}
    mesh = layout.mesh
    degree = "pipeline_parallel_degree" if "pipeline_parallel_degree" in parameters else "partitions"
    # The library asks for this degree if there is no other one.
    if degree in parameters or mesh.pipeline > 1 or (mesh.tensor == 1 and mesh.shard == 1):
        parameters |= {key: mesh.pipeline for key in ("partitions", degree) if key in parameters or key == degree}
    if mesh.data > 1 or mesh.tensor > 1:
        parameters["ddp"] = True
    if not {"optimize", "memory_weight"} & set(parameters) and layout.memory_weight == 0.2:
        parameters["optimize"] = "speed"
    weight = 0.2 if parameters.get("optimize") == "speed" else 0.8
    words = {"cluster": "DPT", "spread": "TPD"}
    placement = parameters.get("placement_strategy", "cluster")
    if words.get(placement, placement) != layout.placement:
        parameters["placement_strategy"] = layout.placement
    settings = {
        "microbatches": (layout.microbatches, 1),
        "active_microbatches": (layout.active, mesh.pipeline + 2),
        "pipeline": (layout.pipeline, "interleaved"),
        "memory_weight": (layout.memory_weight, weight),
        "tensor_parallel_degree": (mesh.tensor, 1),
        "sharded_data_parallel_degree": (mesh.shard, 1),
        "prescaled_batch": (layout.prescaled_batch, False),
        "offload_activations": (layout.offloading, False),
        "shard_optimizer_state": (layout.shard_optimizer_state, False),
        "sdp_reduce_bucket_size": (layout.limits.bucket, _LIMITS.bucket),
        "sdp_param_persistence_threshold": (layout.limits.whole, _LIMITS.whole),
        "sdp_max_live_parameters": (layout.limits.live, _LIMITS.live),
    }
    for key, (value, default) in settings.items():
        _set(parameters, key, value, default=default)
    _set_horizon(parameters, layout, default=4)
    if mesh.shard == 1:
        # Without shards the library refuses every key about them.
        parameters = {key: value for key, value in parameters.items() if not key.startswith("sdp_")}
    return parameters


def _parameters2(layout: Layout, base: Mapping[str, Any]) -> dict[str, Any]:
    parameters, mesh = dict(base), layout.mesh
    # 0 and the number of all ranks that share no layer are the same degree.
    shards = mesh.shard * mesh.context
    _set(parameters, "hybrid_shard_degree", shards if mesh.replicate > 1 else 0, default=0)
    _set(parameters, "tensor_parallel_degree", mesh.tensor, default=1)
    _set(parameters, "context_parallel_degree", mesh.context, default=1)
    _set(parameters, "sm_activation_offloading", layout.offloading, default=False)
    _set_horizon(parameters, layout, default=2)
    # The library is on only with a parameter.
    return parameters or {"hybrid_shard_degree": 0}


def _set_horizon(parameters: dict[str, Any], layout: Layout, default: int) -> None:
    """Write the horizon; without offloading it says nothing, and `base` keeps its own."""
    if layout.offloading:
        _set(parameters, "activation_loading_horizon", layout.horizon, default=default)


def _set(parameters: dict[str, Any], key: str, value: Any, *, default: Any) -> None:
    """Write a value, but not one that is the default anyway; keep the user's own way to write the default."""
    if value != default:
        parameters[key] = value
    elif key in parameters:
        # An explicit default stays where the user wrote one, and replaces another value.
        parameters[key] = default


def _enabled(strategy: object) -> bool:
    return isinstance(strategy, Mapping) and bool(strategy.get("enabled", True))
