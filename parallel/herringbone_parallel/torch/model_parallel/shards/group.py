"""The ranks that share one copy of the training state, and the collectives between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.torch.model_parallel.replicas.replicas import Replicas, job_store

# Before torch 2.13 these functions have other names.
_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
# The calls that ranks have to make together; they agree on a number.
ACTIONS = (
    "the step function",
    "model.state_dict()",
    "model.local_state_dict()",
    "model.load_state_dict()",
    "optimizer.step()",
    "optimizer.state_dict()",
    "optimizer.local_state_dict()",
)


class Hierarchy(NamedTuple):
    """Groups for a gather in two stages: `lane` has one rank of each host, `host` those of this host."""

    lane: Replicas
    host: Replicas


class ShardGroup:
    """Gathers parameters from the ranks of a shard group, and reduces gradients to their parts.

        group = ShardGroup(peers, replicas, data=4)
        group.gather(whole, part)               # `whole` has the parts of all ranks, in the order of their index
        part = group.reduce(gradients)          # this rank's part of the average

    `peers` are the ranks of the group, `replicas` the ranks of all groups that have the same part, None for one group.
    `everyone` are both together, the ranks over which gradients are averaged. With `hierarchy` a gather crosses the
    network between hosts once for each host, and goes on inside each host. `scatters` says that the backend of tensors
    on a GPU can reduce and scatter.
    """

    def __init__(
        self,
        peers: Replicas,
        replicas: Replicas | None,
        everyone: Replicas,
        hierarchy: Hierarchy | None = None,
        *,
        scatters: bool = False,
    ) -> None:
        self.peers = peers
        self.replicas = replicas
        self.everyone = everyone
        self.hierarchy = hierarchy
        self._scatters = scatters

    @property
    def size(self) -> int:
        """The number of parts."""
        return self.peers.size

    @property
    def index(self) -> int:
        """The index of this rank's part."""
        return self.peers.index

    def agree(self, action: str) -> None:
        """Raise `ParallelError` when the other ranks of the group do something else than `action`.

        Without it a rank's `state_dict` would take the parameters that another rank gathers for its next step.
        """
        number = ACTIONS.index(action)
        for rank, other in self.peers.gather(number).items():
            if other != number:
                raise ParallelError(
                    f"this rank calls {action} while rank {rank}, which has another part of the same parameters, calls"
                    f" {ACTIONS[other]}: with sharded parameters, every rank has to make the same calls. Do not put one"
                    " of them under `if smp.rank() == 0:`"
                )

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Fill `whole` with the parts of all ranks."""
        if self.hierarchy is None:
            self._gather(self.peers, whole, part)
            return
        lane, host = self.hierarchy
        # [hosts, length]: the parts of the ranks with this rank's number on their hosts.
        of_lane = torch.empty(lane.size * part.numel(), dtype=part.dtype, device=part.device)
        self._gather(lane, of_lane, part)
        # [ranks of a host, hosts, length], and `whole` is [hosts, ranks of a host, length].
        of_host = torch.empty_like(whole)
        self._gather(host, of_host, of_lane)
        whole.view(lane.size, host.size, -1).copy_(of_host.view(host.size, lane.size, -1).transpose(0, 1))

    def reduce(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the gradients' average over all replicas; overwrites `gradients`."""
        # Before the sum: in float16 the sum of undivided gradients may overflow.
        gradients.div_(self.everyone.size)
        length = gradients.numel() // self.size
        if not self._scatters or gradients.device.type == "cpu":
            # gloo reduces and scatters by a sum of everything, and then takes longer than for the sum alone.
            self.everyone.wait(self.everyone.start_sum(gradients))
            return gradients[self.index * length : (self.index + 1) * length].clone()
        part = torch.empty(length, dtype=gradients.dtype, device=gradients.device)
        self.peers.wait(self.peers.start(partial(_scatter, part, gradients)))
        if self.replicas is not None:
            self.replicas.wait(self.replicas.start_sum(part))
        return part

    def total(self, value: torch.Tensor, *, largest: bool) -> torch.Tensor:
        """Return the sum of the ranks' values, or the largest of them."""
        operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        self.peers.wait(self.peers.start(partial(dist.all_reduce, value, operation)))
        return value

    def objects(self, content: Any) -> list[Any]:
        """Return the object that each rank of the group passed, in the order of their index."""
        return [self.peers.object_of(index, content) for index in range(self.size)]

    @staticmethod
    def _gather(peers: Replicas, whole: torch.Tensor, part: torch.Tensor) -> None:
        peers.wait(peers.start(partial(_gather, whole, part)))


def open_shard_group(
    grid: Grid, rank: int, host: int, backend: str, everyone: Replicas, *, hierarchical: bool
) -> ShardGroup | None:
    """Make the shard groups of the job and return this rank's; None where nothing is sharded. Every rank must call it.

    `host` is a number that the ranks of this host share.
    """
    if grid.mesh.shard == 1:
        return None
    peers = _open(grid.groups("S"), rank, grid, backend)
    replicas = _open(grid.groups("R"), rank, grid, backend) if grid.mesh.replicate > 1 else None
    assert peers is not None
    hierarchy = _open_hierarchy(grid, rank, host, backend) if hierarchical else None
    return ShardGroup(peers, replicas, everyone, hierarchy, scatters=backend != "gloo")


def _open(groups: Sequence[Sequence[int]], rank: int, grid: Grid, backend: str) -> Replicas | None:
    """Make a process group for each of the groups and return the one that has this rank."""
    found = None
    for ranks in groups:
        # `new_group` is a collective call of the whole job, so the order must be the same everywhere.
        group = dist.new_group(list(ranks), backend=backend)
        if rank in ranks:
            found = Replicas(ranks, rank, grid.group("P", rank), group, job_store())
    return found


def _open_hierarchy(grid: Grid, rank: int, host: int, backend: str) -> Hierarchy | None:
    """Make the groups of a gather in two stages; None where a shard group is on one host or has one rank a host."""
    hosts: list[int] = [0] * grid.world_size
    dist.all_gather_object(hosts, host)
    lanes, by_host = cut_by_hosts(grid.groups("S"), hosts)
    own_lane, own_host = _open(lanes, rank, grid, backend), _open(by_host, rank, grid, backend)
    return None if own_lane is None or own_host is None else Hierarchy(own_lane, own_host)


def cut_by_hosts(
    groups: Sequence[Sequence[int]], hosts: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the lanes and the ranks of each host, for all groups that span hosts; `hosts` names each rank's host.

    >>> cut_by_hosts([(0, 1, 2, 3)], [0, 0, 2, 2])
    ([(0, 2), (1, 3)], [(0, 1), (2, 3)])

    A group is left out whose ranks are not neighbours on their hosts, or not as many on each.
    """
    lanes: list[tuple[int, ...]] = []
    by_host: list[tuple[int, ...]] = []
    for group in groups:
        ranks = sorted(group)
        names = list(dict.fromkeys(hosts[rank] for rank in ranks))
        each = len(ranks) // len(names)
        blocks = [tuple(ranks[i : i + each]) for i in range(0, len(ranks), each)]
        level = len(blocks) == len(names) and all(len({hosts[rank] for rank in block}) == 1 for block in blocks)
        if len(names) > 1 and each > 1 and level:
            by_host += blocks
            lanes += [tuple(lane) for lane in zip(*blocks, strict=True)]
    return lanes, by_host
