"""The interface and the configuration of a core, which moves and sums buffers: see `native` and `python_core`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.cut import Lane
from herringbone_parallel.reduce.elements import Element

# A window may hold this many times more chunks than it holds largest ones, because small shards use small chunks.
_SMALLER = 8
# More would be a mistake. The native core has the same limits (`native/abi.c`), which fit its 32-bit numbers.
MOST_RING_BYTES = 1 << 30
MOST_CHUNKS = 1 << 20


class Role(IntEnum):
    """The kind of process at the other end of a connection; codes are those of the native core."""

    HELPER = 0  # a server that sums the chunks that this rank pushes
    PEER = (
        1  # the rank of the same lane on another host, or any rank if this process is a helper: pushes, sums its shard
    )
    LOCAL = 2  # a rank of the same host, whose elements travel through shared memory


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """An authenticated connection that a core takes over.

    `index` counts helpers, hosts or local ranks, depending on the role. For LOCAL, this rank writes its chunks to the
    address `outbox` in the other rank's arena, and finds the other's chunks at `inbox` in its own. An address of 0
    means that the arena's owner carries no lane.
    """

    descriptor: int  # belongs to the core, which closes it
    role: Role
    index: int
    label: str
    outbox: int = 0
    inbox: int = 0


def rotated(links: Sequence[LinkSpec], start: int) -> tuple[LinkSpec, ...]:
    """Return the links in their order, beginning with another one, so that not all hosts send to the same one first."""
    start %= max(1, len(links))
    return (*links[start:], *links[:start])


@dataclass(frozen=True, slots=True)
class Limit:
    """The bytes of a ring, and the largest number of chunks in it at once."""

    ring: int
    chunks: int

    @classmethod
    def of(cls, size: int, chunks: int) -> Limit:
        """Return the limit for `size` bytes in at least `chunks` chunks."""
        return cls(size, chunks * _SMALLER)


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """One core's position and limits. `member` is the host's number, -1 for a helper; times are in seconds.

    `members` counts hosts, `locals` the ranks of this host, `local` is this rank's number among them. No chunk exceeds
    `chunk_bytes`. `limit` bounds the chunks in flight between a worker and a server, `local_limit` those between ranks
    of a host. The core sends to `links` in their order.
    """

    label: str
    member: int
    members: int
    helpers: int
    local: int
    locals: int
    lanes: int
    ranks: int
    # Equal in all processes that share a ring, because each of them computes the positions in it.
    chunk_bytes: int
    limit: Limit
    local_limit: Limit
    silence: float
    late: float
    links: tuple[LinkSpec, ...] = field(default=())  # in the order in which the core sends

    def __post_init__(self) -> None:
        # A helper's numbers come from other processes: none of them may divide by 0 or reach beyond a ring.
        limits = [self.limit, self.local_limit] if self.locals > 1 else [self.limit]
        if (
            not -1 <= self.member < self.members
            or not 0 <= self.local < self.locals
            or not 1 <= self.lanes <= self.locals
            or not 1 <= self.chunk_bytes <= self.limit.ring
            or any(not 0 < limit.ring <= MOST_RING_BYTES or not 0 < limit.chunks <= MOST_CHUNKS for limit in limits)
        ):
            raise ParallelError(f"{self.label}: the sizes of its rings and chunks contradict each other: {limits}")


@dataclass(frozen=True, slots=True)
class Submission:
    """A flat buffer to be summed in place: its address, its elements, their format on the wire, and the cut.

    `chunk` is the number of elements in the largest chunk, `window` the number of bytes in flight to one server.
    The sum over one host is divided by `host_divisor` before it goes over the network, the last sum by `divisor`.
    """

    address: int
    count: int
    element: Element
    wire: Element
    host_divisor: int  # 1 does not divide
    divisor: float
    chunk: int
    window: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class LinkCount:
    """The traffic of one connection so far; bytes include headers, and exclude elements in shared memory."""

    label: str
    sent_bytes: int
    received_bytes: int
    sent_chunks: int
    received_chunks: int


class Core(Protocol):
    """One I/O thread and its connections; the methods may be called from any thread."""

    def submit(self, submission: Submission) -> int:
        """Take over a buffer and return its number; buffers are numbered in order, from 0."""

    def wait(self, sequence: int, timeout: float | None) -> bool:
        """Wait until the buffer's sum is in place; return True if it is. Returns at once after a failure."""

    def done(self, sequence: int) -> bool:
        """Return True if the sum is in place."""

    def failure(self) -> str | None:
        """Return the reason for which this core stopped, or None."""

    def counts(self) -> list[LinkCount]:
        """Return the traffic of each connection."""

    def completions(self) -> int:
        """Return a descriptor that becomes readable when a buffer is done or the core stops; its reader empties it."""

    def ended(self) -> bool:
        """Return True if the I/O thread has ended: after a failure, or when all processes have left."""

    def close(self) -> None:
        """Leave in good order: submitted buffers are summed, and their sums reach all ranks.

        Waits at most 2 seconds for the sums, and 2 more for the other processes to acknowledge the leave.
        """
