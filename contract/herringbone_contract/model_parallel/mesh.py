"""The degrees of parallelism of a job, and the one rule about them: their product is the number of ranks.

    ranks = replicate x shard x context x pipeline x tensor

    replicate   copies of the training state; they average their gradients
    shard       ranks that share one copy of the training state; each has its own part of a batch
    context     ranks that share a sequence; they hold different parts of the training state, too
    pipeline    partitions of the model, each with its own layers
    tensor      ranks that share each layer

`core.grid` of the parallel libraries says which rank has which index on each axis.
"""

from __future__ import annotations

from typing import NamedTuple

from herringbone_contract.errors import DistributionError


class Mesh(NamedTuple):
    """The number of ranks along each axis.

    >>> Mesh(replicate=2, shard=2, tensor=2).ranks
    8
    """

    replicate: int = 1
    shard: int = 1
    context: int = 1
    pipeline: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        """The number of ranks of the job."""
        return self.data * self.pipeline * self.tensor

    @property
    def data(self) -> int:
        """The number of ranks with the same layers, or the same part of each: version 1 calls them replicas."""
        return self.replicate * self.shard * self.context

    @property
    def batches(self) -> int:
        """The number of different batches in a step."""
        return self.replicate * self.shard


def of_version1(ranks: int, *, pipeline: int = 1, tensor: int = 1, shard: int = 1) -> Mesh:
    """Return the mesh of version 1's degrees; replicas take the ranks that the degrees leave.

    >>> of_version1(8, pipeline=2, shard=2)
    Mesh(replicate=2, shard=2, context=1, pipeline=2, tensor=1)

    Raises `DistributionError` when the degrees do not divide the ranks.
    """
    degrees = {
        "partitions": pipeline,
        "tensor_parallel_degree": tensor,
        "sharded_data_parallel_degree": shard,
    }
    replicate = _rest(ranks, degrees, always="partitions")
    return Mesh(replicate=replicate, shard=shard, pipeline=pipeline, tensor=tensor)


def of_version2(ranks: int, *, hybrid_shard: int = 0, context: int = 1, tensor: int = 1) -> Mesh:
    """Return the mesh of version 2's degrees, where `hybrid_shard` counts the ranks of a context as well.

    >>> of_version2(8, hybrid_shard=4, context=2)
    Mesh(replicate=2, shard=2, context=2, pipeline=1, tensor=1)
    >>> of_version2(8, tensor=2)
    Mesh(replicate=1, shard=4, context=1, pipeline=1, tensor=2)

    `hybrid_shard` 0 is all ranks that do not share a layer. Raises `DistributionError` when the degrees do not divide
    the ranks, or `context` does not divide `hybrid_shard`.
    """
    if hybrid_shard == 0:
        shard = _rest(ranks, {"tensor_parallel_degree": tensor, "context_parallel_degree": context})
        return Mesh(shard=shard, context=context, tensor=tensor)
    if hybrid_shard % context:
        raise DistributionError(
            f"hybrid_shard_degree {hybrid_shard} is not a multiple of context_parallel_degree {context}: the ranks that"
            f" share a sequence also share one copy of the training state. Make it {context} or a multiple, or leave it"
            " out"
        )
    replicate = _rest(ranks, {"hybrid_shard_degree": hybrid_shard, "tensor_parallel_degree": tensor})
    return Mesh(replicate=replicate, shard=hybrid_shard // context, context=context, tensor=tensor)


def _rest(ranks: int, degrees: dict[str, int], always: str = "") -> int:
    product = 1
    for degree in degrees.values():
        product *= degree
    if ranks % product:
        named = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1 or name == always]
        total = f" = {product}" if len(named) > 1 else ""
        raise DistributionError(
            f"{' x '.join(named)}{total} does not divide {ranks} ranks. Make processes_per_host x instance_count a"
            f" multiple of {product}, or change the degrees"
        )
    return ranks // product
