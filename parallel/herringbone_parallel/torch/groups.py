"""The process groups of the job, one per kind of parallelism, made once for the whole job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import torch.distributed as dist

from herringbone_parallel.core.grid import Grid


class CommGroup(Enum):
    """A set of ranks that this rank belongs to; the value names the axes of the grid along which its ranks differ."""

    WORLD = "DPT"
    MP_GROUP = "PT"
    DP_GROUP = "DT"
    PP_GROUP = "P"
    TP_GROUP = "T"
    RDP_GROUP = "D"


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
