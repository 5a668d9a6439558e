"""The process groups of the job, one per kind of parallelism, made once for the whole job."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from herringbone_parallel.core.grid import Grid
from herringbone_parallel.core.groups import CommGroup


def open_groups(grid: Grid, rank: int) -> Mapping[CommGroup, dist.ProcessGroup]:
    """Make every group of the job and return those `rank` belongs to; a collective call, in the same order everywhere.

    Groups of the same ranks are one group: a group costs sockets, and most coincide in a small job.
    """
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    world = dist.group.WORLD
    assert world is not None, "the default process group is there before its parts"
    made[tuple(range(grid.world_size))] = world
    for kind in CommGroup:
        for ranks in grid.groups(kind.value):
            if tuple(sorted(ranks)) not in made:
                made[tuple(sorted(ranks))] = dist.new_group(list(ranks))
    return {kind: made[tuple(sorted(grid.group(kind.value, rank)))] for kind in CommGroup}


def open_reduction_group(grid: Grid, rank: int, backend: str) -> dist.ProcessGroup | None:
    """Make every partition's group for gradients, as `open_groups` does, and return this rank's, None without replicas.

    It is apart from `DP_GROUP`: gradients leave in the middle of a step, where a script's own collectives may too.
    """
    mine: dist.ProcessGroup | None = None
    if grid.data > 1:
        for ranks in grid.groups(CommGroup.RDP_GROUP.value):
            group = dist.new_group(list(ranks), backend=backend)
            if rank in ranks:
                mine = group
    return mine
