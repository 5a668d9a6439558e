"""Who sits where: ranks by host, and who carries which lane to the servers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Topology:
    """The hosts' ranks: hosts in the order of their lowest rank, ranks of a host in their order.

    >>> topology = Topology.of(["a", "a", "b", "b"])
    >>> topology.host(3), topology.local_rank(3), topology.lanes
    (1, 1, 2)

    Local rank j of each host carries lane j; a host with more ranks than another has some that carry none. `called` are
    the numbers that messages give the ranks.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    called: tuple[int, ...]

    @classmethod
    def of(cls, host_of_rank: Sequence[str], called: Sequence[int] | None = None) -> Topology:
        names = tuple(dict.fromkeys(host_of_rank))
        return cls(
            names,
            tuple(tuple(rank for rank, host in enumerate(host_of_rank) if host == name) for name in names),
            tuple(range(len(host_of_rank)) if called is None else called),
        )

    @property
    def size(self) -> int:
        return sum(map(len, self.ranks))

    @property
    def hosts(self) -> int:
        return len(self.names)

    @cached_property
    def lanes(self) -> int:
        return min(map(len, self.ranks))

    def host(self, rank: int) -> int:
        return next(index for index, ranks in enumerate(self.ranks) if rank in ranks)

    def local_rank(self, rank: int) -> int:
        return self.ranks[self.host(rank)].index(rank)

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks of the same host, itself included."""
        return self.ranks[self.host(rank)]

    def carriers(self, lane: int) -> tuple[int, ...]:
        """The ranks that carry a lane, in the order of hosts."""
        return tuple(ranks[lane] for ranks in self.ranks)

    def label(self, rank: int) -> str:
        """How messages call a rank."""
        return f"rank {self.called[rank]} on {self.names[self.host(rank)]}"
