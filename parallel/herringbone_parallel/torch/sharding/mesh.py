"""The job's ranks as torch's `DeviceMesh`: how parameters lie on them, and how sequences do.

    parameters   (replicate, shard_context, tensor)      fully_shard and tensor parallelism
    sequences    (replicate, shard, context, tensor)     context parallelism; the same ranks in the same order

The ranks of a context hold different parts of the training state, so parameters know one axis where sequences know
two. torch requires that tensor parallelism and `fully_shard` use slices of one root mesh, and can slice no flattened
axis, so there are two roots. The second one exists only in jobs with context parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.grid import Grid

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

REPLICATE, SHARD, CONTEXT, TENSOR = "replicate", "shard", "context", "tensor"
SHARD_CONTEXT = "shard_context"
PARAMETER_AXES = {REPLICATE: "R", SHARD_CONTEXT: "SC", TENSOR: "T"}
SEQUENCE_AXES = {REPLICATE: "R", SHARD: "S", CONTEXT: "C", TENSOR: "T"}


@dataclass(frozen=True)
class JobMesh:
    """The meshes of a job, of which each rank is a member.

    mesh = open_mesh(Mesh(shard=2, tensor=2), "cpu")
    fully_shard(block, mesh=mesh.shards)
    """

    grid: Grid
    rank: int
    parameters: DeviceMesh
    sequences: DeviceMesh | None

    @property
    def degrees(self) -> Mesh:
        """The number of ranks along each axis."""
        return self.grid.mesh

    @property
    def shards(self) -> DeviceMesh:
        """The ranks that hold one copy of the parameters, or several such copies: what `fully_shard` takes as `mesh`.

        One axis without replicas: a second one would cost an all-reduce of one rank in every backward pass.
        """
        return self.parameters[SHARD_CONTEXT if self.degrees.replicate == 1 else (REPLICATE, SHARD_CONTEXT)]

    @property
    def replicas(self) -> DeviceMesh:
        """The ranks that have the same part of the parameters as this one; itself alone without replicas."""
        return self.parameters[REPLICATE]

    @property
    def tensor(self) -> DeviceMesh | None:
        """The ranks that share each layer with this one; None without tensor parallelism."""
        return self.parameters[TENSOR] if self.degrees.tensor > 1 else None

    @property
    def context(self) -> DeviceMesh | None:
        """The ranks that share a sequence with this one; None without context parallelism."""
        return None if self.sequences is None else self.sequences[CONTEXT]

    @property
    def batches(self) -> int:
        """The number of different batches in a step: the `num_replicas` of a `DistributedSampler`."""
        return self.degrees.batches

    @property
    def batch(self) -> int:
        """The number of this rank's batch among those: the `rank` of a `DistributedSampler`."""
        return self.grid.index("RS", self.rank)


def ranks_of(grid: Grid, axes: dict[str, str]) -> list[object]:
    """Return the global ranks as nested lists, one level for each of the `axes` (name -> letters of the grid).

    >>> ranks_of(Grid(Mesh(shard=2, tensor=2)), PARAMETER_AXES)
    [[[0, 1], [2, 3]]]

    Pure.
    """

    def level(rank: int, letters: Sequence[str]) -> list[object]:
        members = grid.group(letters[0], rank)
        return [level(member, letters[1:]) for member in members] if letters[1:] else list(members)

    return level(0, list(axes.values()))


def open_mesh(degrees: Mesh, rank: int, device_type: str) -> JobMesh:
    """Make the process groups of every axis. Every rank of the job must call it, after `init_process_group`."""
    if degrees.pipeline > 1:
        raise ParallelError(
            f"version 2 has no pipeline, and the mesh has {degrees.pipeline} partitions: pipelines run under `mpi`,"
            " with smdistributed.modelparallel.torch"
        )
    grid = Grid(degrees)
    return JobMesh(
        grid,
        rank,
        _device_mesh(grid, PARAMETER_AXES, device_type),
        _device_mesh(grid, SEQUENCE_AXES, device_type) if degrees.context > 1 else None,
    )


def _device_mesh(grid: Grid, axes: dict[str, str], device_type: str) -> DeviceMesh:
    # Imported here: older torch has no such module, and `state.init` reports that by name.
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh(device_type, torch.tensor(ranks_of(grid, axes)), mesh_dim_names=tuple(axes))
