"""Estimates the seconds that ranks exchange data: sums of gradients, gathered shards, messages of a pipeline.

    links = Links(hosts, layout, timings)
    group = links.group("RS")               # the ranks that average gradients
    group.sum_s(25_000_000), group.gather_s(25_000_000)
    group.summed([Sum(25_000_000, ready_s=0.1)], Library.DDP)

A host's ranks share its link to the other hosts. Where ranks compute on a host's cores, messages take processor time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_contract.prediction.devices import Link
from herringbone_contract.prediction.question import Hosts
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.measurement import Timings
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import choose_window
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.prediction import QUEUE_BYTES
from herringbone_parallel.core.sums.simulate import Sum, ring, sharded

# gloo between processes of one host without measured figures: two copies through the loopback interface.
_LOOPBACK = Link(latency_s=1e-4, bytes_per_second=1e9)
# PCI Express of generation 4, for devices whose own link is not known.
_PCIE = Link(latency_s=2e-5, bytes_per_second=25e9)
# 10 Gbit/s, for hosts whose link is not known.
_ETHERNET = Link(latency_s=5e-5, bytes_per_second=1.25e9)
# DistributedDataParallel copies gradients into buckets and back, and divides them by the ranks. `fully_shard` copies
# parameters out of the buffer of each of two gathers, and gradients into that of the scatter and back. Replicas that
# share updates copy parameters into the buffer of a gather and back, into fresh memory.
BUCKET_COPIES, SHARD_COPIES, UPDATE_COPIES = 3, 4, 6
_COPIES_PER_SECOND = 5e9
# The Python of a unit's hooks in a step and its messages of a few bytes, and that of a parameter.
_UNIT_SECONDS, _PARAMETER_SECONDS = 3e-3, 3e-5


@dataclass(frozen=True, slots=True)
class Group:
    """Equal ranks that exchange data: `local` on each of `hosts` hosts.

    `inside` is a rank's link within its host, `outside` its part of the host's link to other hosts. `gather` and
    `scatter` are links with the cost of an all-gather's and a reduce-scatter's steps.
    """

    hosts: int
    local: int
    inside: Link
    outside: Link
    gather: Link
    scatter: Link

    @property
    def ranks(self) -> int:
        return self.hosts * self.local

    def sum_s(self, size: float) -> float:
        """Return the seconds to sum `size` bytes over all ranks."""
        return self.summed([Sum(round(size))])[-1] if self.ranks > 1 and size >= 1 else 0.0

    def gather_s(self, size: float) -> float:
        """Return the seconds in which every rank gets the `size` bytes of which each rank has a part."""
        return self._half(size, self.gather)

    def scatter_s(self, size: float) -> float:
        """Return the seconds in which `size` bytes are summed, and every rank gets a part of the sum."""
        return self._half(size, self.scatter)

    def send_s(self, size: float) -> float:
        """Return the seconds of one message to a neighbour, over the slowest link between two of the ranks."""
        link = self.outside if self.hosts > 1 else self.inside
        return link.latency_s + size / link.bytes_per_second

    def summed(self, sums: Sequence[Sum], library: Library = Library.DDP) -> tuple[float, ...]:
        """Return the second at which each sum is back, by the library's own way."""
        if self.ranks == 1:
            return tuple(bucket.ready_s for bucket in sums)
        cluster = self._cluster()
        if library is not Library.DATA_PARALLEL:
            return ring(sums, cluster)
        link = cluster.link
        window = choose_window(
            cluster.workers,
            cluster.workers,
            queue_bytes=QUEUE_BYTES,
            bandwidth=link.bytes_per_s,
            latency=link.latency_s,
        )
        return sharded(sums, cluster, window)

    def _cluster(self) -> Cluster:
        inside = HostLink(self.inside.bytes_per_second, self.inside.latency_s)
        if self.hosts == 1:
            return Cluster(workers=self.local, link=inside)
        # Each of the ranks of a host carries its slice, so together they have what `outside` gives to each.
        outside = HostLink(self.outside.bytes_per_second * self.local, self.outside.latency_s)
        return Cluster(workers=self.hosts, link=outside, ranks_per_host=self.local, inside=inside)

    def _half(self, size: float, link: Link) -> float:
        if self.ranks == 1 or not size:
            return 0.0
        # A ring of all ranks; its slowest link is the one between hosts, where one rank of the host sends.
        others = self.ranks - 1
        inside = others * (link.latency_s + size / self.ranks / link.bytes_per_second)
        if self.hosts == 1:
            return inside
        bandwidth = self.outside.bytes_per_second * self.local
        outside = (self.hosts - 1) * (self.outside.latency_s + size / self.hosts / bandwidth)
        return max(inside, outside)


class Links:
    """The groups of a layout's ranks on some hosts.

    `on_cores` is True where messages take time of the cores that compute.
    """

    def __init__(self, hosts: Hosts, layout: Layout, timings: Timings | None = None) -> None:
        self._hosts, self._grid = hosts, Grid(layout.mesh, layout.placement)
        self.on_cores = hosts.cores is not None
        own = timings.collectives if timings is not None else {}
        default = _LOOPBACK if self.on_cores else _PCIE
        self._inside = own.get("all_reduce") or hosts.device.link or default
        self._gather = own.get("all_gather") or self._inside
        self._scatter = own.get("reduce_scatter") or self._inside
        self._send = own.get("send") or self._inside
        self._outside = hosts.link or _ETHERNET
        self._copies = (timings.copied_bytes_per_second if timings is not None else None) or _COPIES_PER_SECOND
        # A GPU computes while Python runs the hooks.
        self.unit_s, self.parameter_s = (_UNIT_SECONDS, _PARAMETER_SECONDS) if self.on_cores else (0.0, 0.0)
        self.supposed = hosts.link is None and hosts.count > 1

    def group(self, axes: str) -> Group:
        """Return the group of the first rank along some axes of the mesh; all groups are alike."""
        hosts, local = self._spread(axes)
        # All groups of a host use its link at the same time.
        part = max(1, self._hosts.ranks_per_host)
        outside = Link(latency_s=self._outside.latency_s, bytes_per_second=self._outside.bytes_per_second / part)
        inside = self._send if axes == "P" else self._inside
        return Group(hosts, local, inside, outside, self._gather, self._scatter)

    def copies_s(self, size: float, copies: int) -> float:
        """Return the processor seconds of so many copies; a GPU makes them while it waits for messages."""
        return copies * size / self._copies if self.on_cores else 0.0

    def _spread(self, axes: str) -> tuple[int, int]:
        ranks = self._grid.group(axes, 0)
        counts = Counter(rank // self._hosts.ranks_per_host for rank in ranks)
        return len(counts), max(counts.values())
