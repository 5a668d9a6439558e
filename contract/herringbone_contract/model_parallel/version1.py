"""The parameters of `smdistributed.modelparallel`, version 1: as the user gave them, and with every default filled in.

Version 1 splits a model into partitions and runs under `mpi`; `version2` has the other library of the same name.
Source of meanings and defaults: SageMaker Python SDK v2.130.0, smd_model_parallel_general.rst, and the developer
guide's pages on sharded data parallelism and tensor parallelism.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from herringbone_contract.model_parallel.mesh import Mesh, of_version1
from herringbone_contract.model_parallel.values import (
    CommunicationBackend,
    Fraction,
    NaturalInt,
    NonNegativeFloat,
    Optimize,
    Pipeline,
    PlacementStrategy,
    Port,
    PositiveInt,
    Precision,
    value_or,
)

# AWS's two words for the common orders; any other order is spelled in letters.
_PLACEMENT_WORDS = {"cluster": "DPT", "spread": "TPD"}


class ResolvedModelParallel(Struct, frozen=True, kw_only=True):
    """The parameters of version 1 that our libraries read, with every default filled in.

    `served` lists the parameters that only AWS's images run.

    `placement` is three letters: the right-most kind of parallelism (D data, P pipeline, T tensor) varies fastest
    over the global ranks. `memory_weight` is the share of memory, as opposed to computation, in a partition's cost.
    `sharded` is the number of replicas that share one copy of the training state, `tensor` the number of ranks that
    share one layer. The figures of `sdp_*` count elements.
    """

    partitions: int
    microbatches: int
    active_microbatches: int
    pipeline: Pipeline
    placement: str
    auto_partition: bool
    default_partition: int
    load_partition: bool
    partition_file: str | None
    contiguous: bool
    horovod: bool
    ddp: bool
    ddp_port: int | None
    ddp_dist_backend: CommunicationBackend
    memory_weight: float
    skip_tracing: bool
    delayed_parameter_initialization: bool
    tensor: int
    prescaled_batch: bool
    sharded: int
    sdp_reduce_bucket_size: int
    sdp_param_persistence_threshold: int
    sdp_max_live_parameters: int
    sdp_hierarchical_allgather: bool
    sdp_gradient_clipping: float
    shard_optimizer_state: bool
    offload_activations: bool
    activation_loading_horizon: int
    precision: Precision
    fp16_params: bool

    def mesh(self, ranks: int) -> Mesh:
        """Return the mesh of a job with so many ranks. Raises `DistributionError` when they do not fit the degrees."""
        return of_version1(ranks, pipeline=self.partitions, tensor=self.tensor, shard=self.sharded)


class ModelParallelParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Version 1's parameters as the user gave them; a missing one is `UNSET` and does not travel.

    >>> ModelParallelParameters(partitions=2, microbatches=4).resolved().active_microbatches
    4
    """

    partitions: PositiveInt | UnsetType = UNSET
    pipeline_parallel_degree: PositiveInt | UnsetType = UNSET
    microbatches: PositiveInt | UnsetType = UNSET
    active_microbatches: PositiveInt | UnsetType = UNSET
    pipeline: Pipeline | UnsetType = UNSET
    optimize: Optimize | UnsetType = UNSET
    placement_strategy: PlacementStrategy | UnsetType = UNSET
    auto_partition: bool | UnsetType = UNSET
    default_partition: NaturalInt | UnsetType = UNSET
    load_partition: bool | UnsetType = UNSET
    partition_file: str | UnsetType = UNSET
    contiguous: bool | UnsetType = UNSET
    horovod: bool | UnsetType = UNSET
    ddp: bool | UnsetType = UNSET
    ddp_port: Port | UnsetType = UNSET
    ddp_dist_backend: CommunicationBackend | UnsetType = UNSET
    memory_weight: Fraction | UnsetType = UNSET
    deterministic_server: bool | UnsetType = UNSET
    tensor_parallel_degree: PositiveInt | UnsetType = UNSET
    offload_activations: bool | UnsetType = UNSET
    activation_loading_horizon: NaturalInt | UnsetType = UNSET
    fp16: bool | UnsetType = UNSET
    bf16: bool | UnsetType = UNSET
    fp16_params: bool | UnsetType = UNSET
    shard_optimizer_state: bool | UnsetType = UNSET
    prescaled_batch: bool | UnsetType = UNSET
    skip_tracing: bool | UnsetType = UNSET
    delayed_parameter_initialization: bool | UnsetType = UNSET
    sharded_data_parallel_degree: PositiveInt | UnsetType = UNSET
    sdp_reduce_bucket_size: PositiveInt | UnsetType = UNSET
    sdp_param_persistence_threshold: NaturalInt | UnsetType = UNSET
    sdp_max_live_parameters: PositiveInt | UnsetType = UNSET
    sdp_hierarchical_allgather: bool | UnsetType = UNSET
    sdp_gradient_clipping: NonNegativeFloat | UnsetType = UNSET

    @property
    def pipeline_degree(self) -> int:
        """The number of partitions, under either of its two names."""
        if self.partitions is not UNSET:
            return self.partitions
        return value_or(self.pipeline_parallel_degree, 1)

    def resolved(self) -> ResolvedModelParallel:
        """Return the parameters that our libraries read, with every default filled in."""
        partitions = self.pipeline_degree
        # Defaults that depend on another parameter, as AWS's documentation gives them.
        optimize: Optimize = value_or(self.optimize, "memory")
        placement = value_or(self.placement_strategy, "cluster")
        return ResolvedModelParallel(
            partitions=partitions,
            microbatches=value_or(self.microbatches, 1),
            active_microbatches=value_or(self.active_microbatches, partitions + 2),
            pipeline=value_or(self.pipeline, "interleaved"),
            placement=_PLACEMENT_WORDS.get(placement, placement),
            auto_partition=value_or(self.auto_partition, True),
            default_partition=value_or(self.default_partition, 0),
            load_partition=value_or(self.load_partition, False),
            partition_file=value_or(self.partition_file, None),
            contiguous=value_or(self.contiguous, True),
            horovod=value_or(self.horovod, False),
            ddp=value_or(self.ddp, False),
            ddp_port=value_or(self.ddp_port, None),
            ddp_dist_backend=value_or(self.ddp_dist_backend, "auto"),
            memory_weight=value_or(self.memory_weight, 0.2 if optimize == "speed" else 0.8),
            skip_tracing=value_or(self.skip_tracing, False),
            delayed_parameter_initialization=value_or(self.delayed_parameter_initialization, False),
            tensor=value_or(self.tensor_parallel_degree, 1),
            prescaled_batch=value_or(self.prescaled_batch, False),
            sharded=value_or(self.sharded_data_parallel_degree, 1),
            sdp_reduce_bucket_size=value_or(self.sdp_reduce_bucket_size, 500_000_000),
            sdp_param_persistence_threshold=value_or(self.sdp_param_persistence_threshold, 1_000_000),
            sdp_max_live_parameters=value_or(self.sdp_max_live_parameters, 1_000_000_000),
            sdp_hierarchical_allgather=value_or(self.sdp_hierarchical_allgather, True),
            sdp_gradient_clipping=value_or(self.sdp_gradient_clipping, 1.0),
            shard_optimizer_state=value_or(self.shard_optimizer_state, False),
            offload_activations=value_or(self.offload_activations, False),
            activation_loading_horizon=value_or(self.activation_loading_horizon, 4),
            precision=self._precision,
            fp16_params=value_or(self.fp16_params, False),
        )

    @property
    def _precision(self) -> Precision:
        if value_or(self.fp16, False):
            return "fp16"
        return "bf16" if value_or(self.bf16, False) else "fp32"
