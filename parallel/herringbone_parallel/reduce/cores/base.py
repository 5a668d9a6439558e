"""What every core that moves buffers offers and is told when it is made; there are two, `native` and `fallback`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from herringbone_parallel.reduce.cores.cut import Lane
from herringbone_parallel.reduce.elements import Element

# Chunks may be smaller than the largest: so many times as many of them are a window at most.
_SMALLER = 8


class Role(IntEnum):
    """Who is at the other end of a connection; codes are those of the native core."""

    HELPER = 0  # a server that sums what this rank pushes
    PEER = 1  # the rank of the same lane on another host (to a helper: any rank): pushes, and sums where it has a shard
    LOCAL = 2  # a rank of the same host; elements travel through shared memory


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A connection that has been authenticated, as a core takes it over.

    `index` counts helpers, hosts or local ranks, by role. For LOCAL, `outbox` is the address of the slots in the
    other's memory that this rank writes its chunks to (0: it carries no lane), `inbox` that of those it is given.
    """

    descriptor: int
    role: Role
    index: int
    label: str
    outbox: int = 0
    inbox: int = 0


def in_turn(links: Sequence[LinkSpec], start: int) -> tuple[LinkSpec, ...]:
    """Return the links in their order, from another one on: hosts that all began with the first would meet there."""
    start %= max(1, len(links))
    return (*links[start:], *links[:start])


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `chunks` chunks at once, in a ring of so many bytes."""

    ring: int
    chunks: int

    @classmethod
    def of(cls, size: int, chunks: int) -> Limit:
        """Return the limit for so many bytes in at least so many chunks."""
        return cls(size, chunks * _SMALLER)


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """One core's place and limits. `member` is the host's number, -1 for a helper; times are in seconds.

    No chunk is larger than `chunk_bytes`. `limit` is what may be under way between a worker and a server at most,
    `local_limit` the same between ranks of a host. `links` stand in the order in which they are sent to.
    """

    label: str
    member: int
    members: int
    helpers: int
    local: int
    locals: int
    lanes: int
    ranks: int
    chunk_bytes: int
    limit: Limit
    local_limit: Limit
    silence: float
    late: float
    links: tuple[LinkSpec, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Submission:
    """A flat buffer to be summed in place: its address, its elements, how they travel and how they are cut.

    `chunk` is how many elements the largest chunk has, `window` how many bytes may be under way to a server.
    """

    address: int
    count: int
    element: Element
    wire: Element
    divisor: int
    chunk: int
    window: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class LinkCount:
    """What went over one connection so far; bytes count headers and, for ranks of one host, not the shared memory."""

    label: str
    sent_bytes: int
    received_bytes: int
    sent_chunks: int
    received_chunks: int


class Core(Protocol):
    """One I/O thread and its connections."""

    def submit(self, submission: Submission) -> int:
        """Take a buffer over and return its number; buffers are numbered in order, from 0."""

    def wait(self, sequence: int, timeout: float | None) -> bool:
        """Wait until the buffer's sum is in place; return whether it is. Returns at once after a failure."""

    def done(self, sequence: int) -> bool:
        """Whether the sum is in place."""

    def failure(self) -> str | None:
        """Why this core stopped, or None."""

    def counts(self) -> list[LinkCount]:
        """What went over each connection."""

    def completions(self) -> int:
        """A descriptor that becomes readable when a buffer is done or the core stops; its reader empties it."""

    def ended(self) -> bool:
        """Whether the I/O thread has ended: after a failure, or when everybody left."""

    def close(self) -> None:
        """Leave in good order: what was submitted and summed reaches everybody. Waits 2 seconds at most."""
