"""Rendezvous: the addresses and ports at which the ranks of a job find each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone_contract.constants import ReduceVariable


class TensorFlowServers(NamedTuple):
    """The ports of TensorFlow's servers on one host; `parameters` is the parameter server's, None without one."""

    address: str
    rank: int
    parameters: int | None = None


class Rendezvous(NamedTuple):
    """The address of rank 0's host, and two ports that only rank 0 uses.

    `listen` is the only address at which rank 0 needs to listen; empty when it is unknown.

    `port` is for the framework's own rendezvous, `reduce_port` for the data-parallel library's. `servers` are those on
    helper hosts, as `reduce_servers.encode` writes them. `tensorflow` are TensorFlow's own servers, by rank, when
    TensorFlow connects the ranks. `names` are the addresses of hosts whose names some host does not know.
    """

    address: str
    port: int
    reduce_port: int
    listen: str = ""
    servers: str = ""
    tensorflow: tuple[TensorFlowServers, ...] = ()
    names: Mapping[str, str] = {}

    def to_message(self) -> dict[str, Any]:
        """Return the rendezvous as JSON; `from_message` reads it back.

        >>> Rendezvous.from_message(Rendezvous("algo-1", 7000, 7001).to_message())
        Rendezvous(address='algo-1', port=7000, reduce_port=7001, listen='', servers='', tensorflow=(), names={})
        """
        # JSON has no tuples of names: a server travels as a list, and comes back by position.
        return {**self._asdict(), "tensorflow": [list(servers) for servers in self.tensorflow]}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Rendezvous:
        """Read back what `to_message` wrote."""
        servers = tuple(TensorFlowServers(*values) for values in message["tensorflow"])
        return cls(**{**message, "tensorflow": servers})


def rendezvous_variables(rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables by which a rank of the data-parallel library finds the others.

    >>> rendezvous_variables(Rendezvous("algo-1", 7000, 7001))
    {'HERRINGBONE_REDUCE_MEET': 'algo-1:7001'}

    The job's token is not among them: every child inherits variables, so the token goes through a descriptor.
    """
    values = {ReduceVariable.MEET: f"{rendezvous.address}:{rendezvous.reduce_port}"}
    if rendezvous.servers:
        values[ReduceVariable.SERVERS] = rendezvous.servers
    return values
