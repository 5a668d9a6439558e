"""The hello of a rank to a helper's server, from which the server lays out its memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.cores.base import MOST_CHUNKS, MOST_RING_BYTES, Limit
from herringbone_parallel.reduce.join.wire_values import MOST_RANKS, seconds, text, whole

# A lane of more hosts would need thousands of connections to one server.
_MOST_HOSTS = 1 << 14
_MOST_HEADERS = 1 << 24


@dataclass(frozen=True, slots=True)
class LaneHello:
    """One rank's part of a lane: `member` of `members` hosts. `server` is the helper's number.

        hello = LaneHello.of(message)
        rings = [bytearray(hello.ring) for _ in range(hello.members)]

    `fabric` is the offer of a rail over libfabric (`Rails.offer`), or None. `join_timeout` is in seconds.
    """

    session: str
    lane: int
    server: int
    member: int
    members: int
    # The server allocates its rings by these three values.
    chunk_bytes: int
    ring: int
    most: int
    silence: float
    late: float
    join_timeout: float
    label: str
    fabric: dict[str, Any] | None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> LaneHello:
        """Read a decoded JSON message; raises `ParallelError` or `KeyError` for one that no rank sends."""
        fabric = message["fabric"]
        if fabric is not None and not isinstance(fabric, dict):
            raise ParallelError(f"the offer of a rail is {type(fabric).__name__}: it is an object, or null")
        members = whole(message, "members", 1, _MOST_HOSTS)
        ring = whole(message, "ring", 1, MOST_RING_BYTES)
        # The server keeps one header of each chunk of each member.
        most = whole(message, "most", 1, min(MOST_CHUNKS, _MOST_HEADERS // members))
        return cls(
            session=text(message, "session"),
            lane=whole(message, "lane", 0, MOST_RANKS),
            server=whole(message, "server", 0, MOST_RANKS),
            member=whole(message, "member", 0, members - 1),
            members=members,
            # A chunk that exceeds the ring would be written beyond it.
            chunk_bytes=whole(message, "chunk_bytes", 1, ring),
            ring=ring,
            most=most,
            silence=seconds(message, "silence"),
            late=seconds(message, "late"),
            join_timeout=seconds(message, "join_timeout"),
            label=text(message, "label"),
            fabric=fabric,
        )

    @property
    def limit(self) -> Limit:
        """The bytes and the chunks that may be in flight on each connection."""
        return Limit(self.ring, self.most)

    def difference(self, other: LaneHello) -> str | None:
        """Return the first value on which two ranks of a lane disagree, as a message, or None."""
        ours, theirs = asdict(self), asdict(other)
        for name in ("server", "members", "chunk_bytes", "ring", "most", "silence", "late"):
            if ours[name] != theirs[name]:
                return f"ranks disagree on {name}: {ours[name]} and {theirs[name]}"
        return None
