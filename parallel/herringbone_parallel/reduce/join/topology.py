"""The layout of a job's ranks: their hosts, and the ranks that carry each lane to the servers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Topology:
    """The hosts and their ranks: hosts in the order of their lowest rank, ranks of a host in ascending order.

    >>> topology = Topology.of(["a", "a", "b", "b"])
    >>> topology.host(3), topology.local_rank(3), topology.lanes
    (1, 1, 2)

    Local rank j of each host carries lane j. If a host has more ranks than another, its last ranks carry no lane.
    `job_ranks` holds the numbers that messages use for the ranks.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    job_ranks: tuple[int, ...]

    @classmethod
    def of(cls, host_of_rank: Sequence[str], job_ranks: Sequence[int] | None = None) -> Topology:
        """Return the topology of ranks on these hosts, one host name per rank."""
        # A dict keeps the order of first appearance, which is the order of the hosts' lowest ranks.
        names = tuple(dict.fromkeys(host_of_rank))
        return cls(
            names,
            tuple(tuple(rank for rank, host in enumerate(host_of_rank) if host == name) for name in names),
            tuple(range(len(host_of_rank)) if job_ranks is None else job_ranks),
        )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks))

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return len(self.names)

    @cached_property
    def lanes(self) -> int:
        """The number of lanes: a lane needs a carrier on every host, so the smallest host decides."""
        return min(map(len, self.ranks))

    def host(self, rank: int) -> int:
        """Return the index of a rank's host."""
        # A linear search is fast enough: it runs while joining, never per buffer.
        return next(index for index, ranks in enumerate(self.ranks) if rank in ranks)

    def local_rank(self, rank: int) -> int:
        """Return a rank's number among the ranks of its host."""
        return self.ranks[self.host(rank)].index(rank)

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the same host, including `rank`."""
        return self.ranks[self.host(rank)]

    def carriers(self, lane: int) -> tuple[int, ...]:
        """Return the ranks that carry a lane, in the order of hosts."""
        # Every host has this local rank, because the smallest host limits the number of lanes.
        return tuple(ranks[lane] for ranks in self.ranks)

    def label(self, rank: int) -> str:
        """Return the name of a rank in messages."""
        return f"rank {self.job_ranks[rank]} on {self.names[self.host(rank)]}"
