"""The process groups of the job: one per kind of parallelism, made once in `smp.init`."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from herringbone_parallel.core.grid import Grid
from herringbone_parallel.core.groups import CommGroup


def open_groups(grid: Grid, rank: int) -> Mapping[CommGroup, dist.ProcessGroup]:
    """Make every group of the job and return those that `rank` belongs to. Every rank of the job must call it.

    Groups of the same ranks are one group: a group costs sockets, and most coincide in a small job.
    """
    # `new_group` is a collective call, also for ranks outside the group, so the order must be the same everywhere.
    by_ranks: dict[tuple[int, ...], dist.ProcessGroup] = {}
    world = dist.group.WORLD
    assert world is not None, "the default process group is there before its parts"
    by_ranks[tuple(range(grid.world_size))] = world
    for kind in CommGroup:
        for ranks in grid.groups(kind.value):
            if tuple(sorted(ranks)) not in by_ranks:
                by_ranks[tuple(sorted(ranks))] = dist.new_group(list(ranks))
    return {kind: by_ranks[tuple(sorted(grid.group(kind.value, rank)))] for kind in CommGroup}


def open_reduction_group(grid: Grid, rank: int, backend: str) -> dist.ProcessGroup | None:
    """Make each partition's group for gradients and return this rank's; None without replicas. Every rank must call it.

    The group is separate from `DP_GROUP`: gradients leave in the middle of a step, where modules may use collectives.
    """
    reduction_group: dist.ProcessGroup | None = None
    if grid.data > 1:
        for ranks in grid.groups(CommGroup.RDP_GROUP.value):
            group = dist.new_group(list(ranks), backend=backend)
            if rank in ranks:
                reduction_group = group
    return reduction_group
