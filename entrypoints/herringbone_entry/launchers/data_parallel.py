"""`smdistributed.dataparallel`: how its ranks, and its servers on helper hosts, find and trust each other. Pure.

The library itself, `herringbone_parallel`, is not imported here: these are the variables that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from herringbone_contract.constants import ReduceVariable
from herringbone_entry.launchers.tensorflow_cluster import Servers

if TYPE_CHECKING:
    from herringbone_contract.strategies import DataParallel

# As in `plain`: no folder of the user's stands first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; "
    "from herringbone_entry.sidecars.reduce_server import main; main()"
)


class Meeting(NamedTuple):
    """Where the ranks of a job meet: the address of rank 0's host, and two ports that are rank 0's alone.

    `port` is for the framework's own rendezvous, `reduce_port` for the data-parallel library's; `servers` are those on
    helper hosts, as `reduce_servers.encode` writes them. `tensorflow` are TensorFlow's own servers, by rank, where
    TensorFlow connects the ranks.
    """

    address: str
    port: int
    reduce_port: int
    servers: str = ""
    tensorflow: tuple[Servers, ...] = ()


def settings(strategy: DataParallel | None) -> dict[str, str]:
    """Return the variables that carry what the `distribution` says of the library.

    >>> from herringbone_contract.strategies import DataParallel
    >>> settings(DataParallel(enabled=True, wire="bf16", rails=("eth0", "eth1")))
    {'HERRINGBONE_REDUCE_WIRE': 'bf16', 'HERRINGBONE_REDUCE_RAILS': 'eth0,eth1'}
    """
    values: dict[str, str] = {}
    if strategy is None:
        return values
    # What was not given is of a type of its own.
    if isinstance(strategy.wire, str):
        values[ReduceVariable.WIRE] = strategy.wire
    if isinstance(strategy.rails, tuple):
        values[ReduceVariable.RAILS] = ",".join(strategy.rails)
    if isinstance(strategy.aggregation_frequency, int):
        values[ReduceVariable.AGGREGATION_FREQUENCY] = str(strategy.aggregation_frequency)
    if isinstance(strategy.average_aggregated_gradients, bool):
        values[ReduceVariable.AVERAGE_AGGREGATED_GRADIENTS] = str(strategy.average_aggregated_gradients).lower()
    return values


def rendezvous(meeting: Meeting) -> dict[str, str]:
    """Return what tells a rank where the others are; the secret goes another way (`orders`).

    >>> rendezvous(Meeting("algo-1", 7000, 7001))
    {'HERRINGBONE_REDUCE_MEET': 'algo-1:7001'}
    """
    values = {ReduceVariable.MEET: f"{meeting.address}:{meeting.reduce_port}"}
    if meeting.servers:
        values[ReduceVariable.SERVERS] = meeting.servers
    return values


def server_argv(python: str) -> list[str]:
    """Return the command of a helper host's server."""
    return [python, "-c", _START]


def server_environment(
    inherited: Mapping[str, str], rails: str | None, *, host: str, on_one_machine: bool
) -> dict[str, str]:
    """Return what a helper host's server starts in; among machines it listens at all addresses of its host."""
    listen = "127.0.0.1" if on_one_machine else "0.0.0.0"  # noqa: S104 - who connects must prove to know the token
    values = {**inherited, ReduceVariable.HOST: host, ReduceVariable.LISTEN: listen}
    return values if rails is None else {**values, ReduceVariable.RAILS: rails}


def token(secret: bytes) -> str:
    """Return what ranks and servers prove to know, made from what the job's supervisors know.

    Not that secret itself: user code can read this, and must not become a host of the job by it.
    """
    # Most jobs never need it.
    import hmac

    return hmac.digest(secret, b"herringbone reduce", "sha256").hex()
