"""Describes the hosts that sum gradients together, and their links."""

from __future__ import annotations

from dataclasses import dataclass

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.links import HostLink


@dataclass(frozen=True, slots=True)
class Cluster:
    """`workers` hosts of `ranks_per_host` ranks each, and `helpers` hosts, all with the same `link`.

    >>> Cluster(workers=2, link=HostLink(1e9), ranks_per_host=4, inside=HostLink(1e10)).inside_s(4_000_000)
    0.0003

    `inside` is the link of a rank to the other ranks of its host. Raises `ParallelError` for impossible counts.
    """

    workers: int
    link: HostLink
    helpers: int = 0
    ranks_per_host: int = 1
    inside: HostLink | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.helpers < 0 or self.ranks_per_host < 1:
            raise ParallelError(f"{self}: at least 1 worker, 0 helpers, 1 rank per host are needed")
        if self.ranks_per_host > 1 and self.inside is None:
            raise ParallelError(f"{self}: several ranks on a host need `inside`, the link between them")

    def inside_s(self, size: float) -> float:
        """Return the time of a reduce-scatter, or of an all-gather, of `size` bytes between the ranks of a host."""
        if self.inside is None or self.ranks_per_host == 1:
            return 0.0
        # A ring inside the host: one step per other rank, each with one rank's part of the bytes.
        others = self.ranks_per_host - 1
        return others * self.inside.latency_s + self.inside.busy_s(size * others / self.ranks_per_host, others)
