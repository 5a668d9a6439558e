"""Translates a `distribution` dict into a `Layout`: the facts of a dict on which predictions depend.

    layout = layout_of(parse({"torch_distributed": {"enabled": True}}), ranks=8, measurement=measurement)
    layout.mesh                                     # Mesh(replicate=8, ...)

A layout that nobody can predict, or that the script cannot run, raises an error with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from herringbone_contract.distribution import Distribution, Launcher
from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.model_parallel.values import value_or
from herringbone_contract.model_parallel.version1 import ResolvedModelParallel
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
    recomputes by itself; no dict asks for it alone. With `offloading`,
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
