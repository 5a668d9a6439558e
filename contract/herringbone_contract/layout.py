"""Decide how many ranks each host has, and which rank runs on which host. Pure.

The SDK plans with these rules before a job starts, and the hosts lay out their ranks with the same rules. Nothing else
decides where a rank runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from herringbone_contract.launcher import Launcher
from herringbone_contract.resources import natural_order


class RankPlacement(NamedTuple):
    """One rank and the host it runs on. `host_index` counts hosts that have ranks, from 0."""

    rank: int
    local_rank: int
    host: str
    host_index: int
    num_local: int
    num_hosts: int
    world_size: int


class Layout(NamedTuple):
    """Ranks on hosts, in natural host order: the first host has ranks 0, 1, ..., the next host continues.

    >>> Layout(("algo-1", "algo-2"), (2, 2)).placement(3)
    RankPlacement(rank=3, local_rank=1, host='algo-2', host_index=1, num_local=2, num_hosts=2, world_size=4)
    """

    hosts: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""
        return sum(self.counts)

    @property
    def master(self) -> str:
        """The host of rank 0."""
        return self.hosts[0]

    def ranks(self, host: str) -> range:
        """Return the ranks of a host; an empty range when the host is not in the layout."""
        if host not in self.hosts:
            return range(0)
        index = self.hosts.index(host)
        first_rank = sum(self.counts[:index])
        return range(first_rank, first_rank + self.counts[index])

    def placement(self, rank: int) -> RankPlacement:
        """Return the host of a rank and the rank's numbers there."""
        first_rank = 0
        for index, (host, count) in enumerate(zip(self.hosts, self.counts, strict=True)):
            if rank < first_rank + count:
                return RankPlacement(rank, rank - first_rank, host, index, count, len(self.hosts), self.world_size)
            first_rank += count
        raise AssertionError(f"rank {rank} of {self.world_size}")

    def encode(self) -> str:
        """Write the layout as one word, which a rank under mpirun reads to find its host.

        >>> Layout(("algo-1", "algo-2"), (2, 2)).encode()
        'algo-1:2,algo-2:2'
        """
        return ",".join(f"{host}:{count}" for host, count in zip(self.hosts, self.counts, strict=True))


def lay_out(counts: Mapping[str, int]) -> Layout:
    """Lay ranks on hosts in natural order (algo-2 before algo-10), whatever the order of the mapping.

    >>> lay_out({"algo-10": 1, "algo-2": 1, "algo-1": 0}).hosts
    ('algo-2', 'algo-10')
    """
    hosts = tuple(host for host in natural_order(tuple(counts)) if counts[host])
    return Layout(hosts, tuple(counts[host] for host in hosts))


def ranks_per_host(launcher: Launcher, processes_per_host: int | None) -> int | None:
    """Return the number of ranks on each host that trains; None where a host starts one rank per GPU.

    >>> ranks_per_host(Launcher.MPI, 2), ranks_per_host(Launcher.PLAIN, None), ranks_per_host(Launcher.MPI, None)
    (2, 1, 1)
    >>> ranks_per_host(Launcher.TORCH_DISTRIBUTED, None) is None
    True
    """
    if launcher is Launcher.TORCH_DISTRIBUTED:
        return None
    # `mpi` next to data parallelism gives the number; without `mpi` it is None, one rank per GPU.
    if launcher is Launcher.DATA_PARALLEL:
        return processes_per_host
    return (processes_per_host or 1) if launcher is Launcher.MPI else 1


def ranks_on_host(launcher: Launcher, processes_per_host: int | None, *, num_gpus: int) -> int:
    """Return the number of ranks on one host that trains, once the host has counted its GPUs.

    >>> ranks_on_host(Launcher.TORCH_DISTRIBUTED, None, num_gpus=8), ranks_on_host(Launcher.PLAIN, None, num_gpus=8)
    (8, 1)
    """
    count = ranks_per_host(launcher, processes_per_host)
    # A host without a GPU trains on its CPUs, with one rank.
    return max(1, num_gpus) if count is None else count


def hosts_of_groups(groups: Sequence[str], members: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return, in natural order, the hosts of the instance groups that a distribution names.

    >>> hosts_of_groups(["gpu"], {"gpu": ("algo-2", "algo-3"), "cpu": ("algo-1",)})
    ('algo-2', 'algo-3')
    """
    return tuple(natural_order([host for group in groups for host in members[group]]))
