"""The rendezvous of a job's ranks: each rank sends its address to rank 0 and gets the addresses of all ranks.

[1] rank n  -> rank 0    RankInfo: host, listening addresses, settings that must be equal
[2] rank 0               waits for all ranks, compares their settings
[3] rank 0  -> rank n    Roster: all RankInfos in the order of ranks, or the error that stops all of them
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.wire_values import MOST_RANKS, text, whole

# Rank 0 waits until the deadline and then names the ranks that are missing; the others wait longer for that message.
_EXTRA_SECONDS = 5.0
# The name of rank 0 before the ranks know each other.
_LABEL = "rank 0"
_MOST_RAILS = 64


@dataclass(frozen=True)
class RankInfo:
    """One rank's message to the others.

    `addresses` holds one (address, port) per rail, `local_path` the path of its Unix socket for ranks of the same host.
    `agreed` holds the settings that must be equal on all ranks. Messages call the rank `job_rank`, or `rank` if that is
    None.
    """

    rank: int
    size: int
    host: str
    addresses: tuple[tuple[str, int], ...]
    local_path: str
    agreed: Mapping[str, Any]
    job_rank: int | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> RankInfo:
        """Read the info from a decoded JSON message; raises `ParallelError` for a value that no rank sends."""
        size = whole(message, "size", 1, MOST_RANKS)
        addresses, agreed = message["addresses"], message["agreed"]
        if not isinstance(addresses, list) or not isinstance(agreed, dict) or not 0 < len(addresses) <= _MOST_RAILS:
            raise ParallelError(
                f"a rank's info holds 1 to {_MOST_RAILS} addresses, and the settings that must be equal"
            )
        ends = [dict(zip(("address", "port"), pair, strict=True)) for pair in addresses]
        return cls(
            rank=whole(message, "rank", 0, size - 1),
            size=size,
            host=text(message, "host"),
            addresses=tuple((text(end, "address"), whole(end, "port", 1, 65535)) for end in ends),
            local_path=text(message, "local_path"),
            agreed=agreed,
            job_rank=None if message["job_rank"] is None else whole(message, "job_rank", 0, MOST_RANKS),
        )


@dataclass(frozen=True)
class Roster:
    """All ranks in their order. `session` is a random name that no other rendezvous has."""

    session: str
    ranks: tuple[RankInfo, ...]


def exchange(settings: Settings, info: RankInfo, listener: socket.socket | None) -> tuple[Roster, int]:
    """Wait for all ranks; return the roster, and the number of connections that rank 0 refused.

    `listener` is rank 0's socket at `settings.rendezvous`, and None on other ranks. Raises `ParallelError` naming the
    ranks that did not connect within `settings.join_timeout` seconds, or a setting that differs.
    """
    deadline = time.monotonic() + settings.join_timeout
    if listener is not None:
        return _serve(settings, info, listener, deadline)
    connection, answer = connect(
        settings.rendezvous, _LABEL, settings.token, asdict(info), deadline, extra_seconds=_EXTRA_SECONDS
    )
    # The roster is complete, so this connection has no further use.
    connection.close()
    ranks = tuple(map(RankInfo.of, answer["ranks"]))
    if [rank.rank for rank in ranks] != list(range(settings.size)):
        raise ParallelError(f"rank 0 named {len(ranks)} ranks of {settings.size}, or in another order")
    return Roster(text(answer, "session"), ranks), 0


def differences(ranks: Sequence[RankInfo]) -> str | None:
    """Return the first setting on which these ranks disagree, as a message, or None. Pure.

    >>> differences([RankInfo(0, 2, "a", (), "", {"window": 4}), RankInfo(1, 2, "b", (), "", {"window": 8})])
    'ranks disagree on window: 4 on rank 0, 8 on rank 1'
    """
    if len({rank.size for rank in ranks}) > 1:
        return "ranks disagree on their number: " + ", ".join(f"{rank.size} on rank {rank.rank}" for rank in ranks)
    first = ranks[0]
    for rank in ranks[1:]:
        # Sorted, because the order of a set varies between runs.
        for name in sorted({*first.agreed, *rank.agreed}):
            ours, theirs = first.agreed.get(name), rank.agreed.get(name)
            if ours != theirs:
                return f"ranks disagree on {name}: {ours} on rank {first.rank}, {theirs} on rank {rank.rank}"
    return None


def _serve(settings: Settings, info: RankInfo, listener: socket.socket, deadline: float) -> tuple[Roster, int]:
    """Collect all ranks' infos on rank 0, and answer all of them with the roster or with an error."""
    arrived: dict[int, RankInfo] = {info.rank: info}
    connections: list[AuthenticatedConnection] = []
    # Guards `arrived` and `connections`, which the acceptor's threads fill.
    changed = threading.Condition()

    def admit(connection: AuthenticatedConnection, hello: dict[str, Any]) -> None:
        rank = RankInfo.of(hello)
        with changed:
            if rank.rank in arrived:
                raise ParallelError(
                    f"rank {rank.rank} connected twice, from {arrived[rank.rank].host} and from {rank.host}"
                )
            arrived[rank.rank] = rank
            # The connection stays open until rank 0 answers all ranks together.
            connections.append(connection)
            changed.notify_all()

    acceptor = Acceptor([listener], settings.token, _LABEL, admit)
    try:
        with changed:
            changed.wait_for(lambda: len(arrived) >= settings.size, deadline - time.monotonic())
            absent = sorted(set(range(settings.size)) - set(arrived))
        # Sorted, because ranks arrive in any order.
        ranks = tuple(arrived[rank] for rank in sorted(arrived))
        # A difference explains more than an absence: a rank with another `size` makes ranks look absent.
        error = differences(ranks)
        if error is None and absent:
            refused = (
                f"; {acceptor.refused} connections without the job's token were refused" if acceptor.refused else ""
            )
            address, timeout = settings.rendezvous[0], settings.join_timeout
            error = f"{_list(absent)} did not connect to {address} within {timeout:g} s{refused}"
        # The random session tells connections of this job apart from those of another one at a reused address.
        roster = Roster(secrets.token_hex(8), ranks)
        answer = {"error": error} if error else asdict(roster)
        for connection in connections:
            # A rank that has died since is not an error here: the ranks that connect to it next will name it.
            try:
                connection.send(answer)
            except OSError:
                continue
        # Rank 0 fails with the same error as the others.
        if error:
            raise ParallelError(error)
        return roster, acceptor.refused
    finally:
        acceptor.close()
        for connection in connections:
            connection.close()


def _list(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:20])) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def rank_zero(settings: Settings) -> socket.socket | None:
    """Return rank 0's listening socket at the rendezvous; None on other ranks."""
    return listen(*settings.rendezvous) if settings.rank == 0 else None
