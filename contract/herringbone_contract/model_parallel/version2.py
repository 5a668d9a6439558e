"""The parameters of `smdistributed.modelparallel`, version 2: as the user gave them, and with every default filled in.

Version 2 shards a model over the ranks and runs under `torch_distributed`; `version1` has the other library of the same
name. Source of meanings and defaults: the developer guide's page "SMP v2 core features and configuration".
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from herringbone_contract.model_parallel.mesh import Mesh, of_version2
from herringbone_contract.model_parallel.values import NaturalInt, PositiveInt, value_or


class ResolvedModelParallelV2(Struct, frozen=True, kw_only=True):
    """The parameters of version 2 that our library reads, with every default filled in.

    `hybrid_shard_degree` is the number of ranks that share one copy of the training state, those of one context
    included; 0 is all ranks that do not share a layer.
    """

    hybrid_shard_degree: int
    tensor_parallel_degree: int
    context_parallel_degree: int
    sm_activation_offloading: bool
    activation_loading_horizon: int
    fsdp_cache_flush_warnings: bool
    allow_empty_shards: bool
    random_seed: int

    def mesh(self, ranks: int) -> Mesh:
        """Return the mesh of a job with so many ranks. Raises `DistributionError` when they do not fit the degrees."""
        return of_version2(
            ranks,
            hybrid_shard=self.hybrid_shard_degree,
            context=self.context_parallel_degree,
            tensor=self.tensor_parallel_degree,
        )


class ModelParallelV2Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Version 2's parameters as the user gave them; a missing one is `UNSET` and does not travel.

    >>> ModelParallelV2Parameters(tensor_parallel_degree=2).resolved().context_parallel_degree
    1
    """

    hybrid_shard_degree: NaturalInt | UnsetType = UNSET
    sm_activation_offloading: bool | UnsetType = UNSET
    activation_loading_horizon: NaturalInt | UnsetType = UNSET
    fsdp_cache_flush_warnings: bool | UnsetType = UNSET
    allow_empty_shards: bool | UnsetType = UNSET
    tensor_parallel_degree: PositiveInt | UnsetType = UNSET
    context_parallel_degree: PositiveInt | UnsetType = UNSET
    expert_parallel_degree: PositiveInt | UnsetType = UNSET
    random_seed: int | UnsetType = UNSET

    def resolved(self) -> ResolvedModelParallelV2:
        """Return the parameters that our library reads, with every default filled in."""
        return ResolvedModelParallelV2(
            hybrid_shard_degree=value_or(self.hybrid_shard_degree, 0),
            tensor_parallel_degree=value_or(self.tensor_parallel_degree, 1),
            context_parallel_degree=value_or(self.context_parallel_degree, 1),
            sm_activation_offloading=value_or(self.sm_activation_offloading, False),
            activation_loading_horizon=value_or(self.activation_loading_horizon, 2),
            fsdp_cache_flush_warnings=value_or(self.fsdp_cache_flush_warnings, False),
            allow_empty_shards=value_or(self.allow_empty_shards, False),
            random_seed=value_or(self.random_seed, 12_345_678),
        )
