"""The parameters of `smdistributed.modelparallel`: as the user gave them, and with every default filled in.

There are two libraries of that name. Version 1 splits a model into partitions and runs under `mpi`; version 2 shards
it (FSDP) and runs under `torch_distributed`. They share one key of the `distribution` dict and few parameters, so each
has its own type. Source of meanings and defaults: SageMaker Python SDK v2.130.0, smd_model_parallel_general.rst, and
the developer guide's pages on sharded data parallelism.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

PositiveInt = Annotated[int, Meta(ge=1)]
NaturalInt = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0, le=sys.float_info.max)]  # JSON has no NaN and no infinity

Pipeline = Literal["interleaved", "simple", "zero_bubble", "_only_forward"]
Optimize = Literal["memory", "speed"]
PlacementStrategy = Literal["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"]
CommunicationBackend = Literal["auto", "nccl", "gloo"]

Value = TypeVar("Value")


def value_or(value: Value | UnsetType, default: Value) -> Value:
    """Return the user's value, else the default."""
    return default if value is UNSET else value


# AWS's two words for the common orders; any other order is spelled in letters.
_PLACEMENT_WORDS = {"cluster": "DPT", "spread": "TPD"}


class ResolvedModelParallel(Struct, frozen=True, kw_only=True):
    """The parameters of version 1 that our libraries read, with every default filled in.

    `herringbone_contract.served` lists the other parameters, which only AWS's images run.

    `placement` is three letters: the right-most kind of parallelism (D data, P pipeline, T tensor) varies fastest
    over the global ranks. `memory_weight` is the share of memory, as opposed to computation, in a partition's cost.
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
        )


class ModelParallelV2Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Version 2's parameters, for a job under `torch_distributed`; its library keeps the defaults."""

    hybrid_shard_degree: NaturalInt | UnsetType = UNSET
    sm_activation_offloading: bool | UnsetType = UNSET
    activation_loading_horizon: NaturalInt | UnsetType = UNSET
    fsdp_cache_flush_warnings: bool | UnsetType = UNSET
    allow_empty_shards: bool | UnsetType = UNSET
    tensor_parallel_degree: PositiveInt | UnsetType = UNSET
    context_parallel_degree: PositiveInt | UnsetType = UNSET
    expert_parallel_degree: PositiveInt | UnsetType = UNSET
    random_seed: int | UnsetType = UNSET
