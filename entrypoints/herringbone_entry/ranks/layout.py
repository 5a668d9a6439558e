"""Which rank lives on which host: decided here, nowhere else, and pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from herringbone_contract.resources import natural_order


class Place(NamedTuple):
    """Where one rank lives. `host_index` counts hosts that have ranks, from 0."""

    rank: int
    local_rank: int
    host: str
    host_index: int
    num_local: int
    num_hosts: int
    world_size: int


class Layout(NamedTuple):
    """Ranks on hosts, in natural host order: the first host has ranks 0, 1, ..., the next one goes on.

    >>> Layout(("algo-1", "algo-2"), (2, 2)).place(3)
    Place(rank=3, local_rank=1, host='algo-2', host_index=1, num_local=2, num_hosts=2, world_size=4)
    """

    hosts: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return sum(self.counts)

    @property
    def master(self) -> str:
        """The host of rank 0."""
        return self.hosts[0]

    def ranks(self, host: str) -> range:
        """Return the ranks of a host; none when it is not in the layout."""
        if host not in self.hosts:
            return range(0)
        index = self.hosts.index(host)
        first = sum(self.counts[:index])
        return range(first, first + self.counts[index])

    def place(self, rank: int) -> Place:
        """Return where a rank lives."""
        first = 0
        for index, (host, count) in enumerate(zip(self.hosts, self.counts, strict=True)):
            if rank < first + count:
                return Place(rank, rank - first, host, index, count, len(self.hosts), self.world_size)
            first += count
        raise AssertionError(f"rank {rank} of {self.world_size}")

    def encode(self) -> str:
        """Write the layout as one word, which `attach.host_of` reads.

        >>> Layout(("algo-1", "algo-2"), (2, 2)).encode()
        'algo-1:2,algo-2:2'
        """
        return ",".join(f"{host}:{count}" for host, count in zip(self.hosts, self.counts, strict=True))


def lay_out(counts: dict[str, int]) -> Layout:
    """Lay ranks on hosts in natural order (algo-2 before algo-10), whatever the order of the dict.

    >>> lay_out({"algo-10": 1, "algo-2": 1, "algo-1": 0}).hosts
    ('algo-2', 'algo-10')
    """
    hosts = tuple(host for host in natural_order(tuple(counts)) if counts[host])
    return Layout(hosts, tuple(counts[host] for host in hosts))


def hosts_of_groups(groups: Sequence[str], members: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return, in natural order, the hosts of the instance groups that a distribution names.

    >>> hosts_of_groups(["gpu"], {"gpu": ("algo-2", "algo-3"), "cpu": ("algo-1",)})
    ('algo-2', 'algo-3')
    """
    return tuple(natural_order([host for group in groups for host in members[group]]))


def one_per_gpu(num_gpus: int) -> int:
    """Return how many ranks a host gets where nobody says so: one per GPU, or one."""
    return max(1, num_gpus)
