"""Where the servers on helper hosts listen, as the ranks of a job are told it (`ReduceVariable.SERVERS`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from herringbone_spec.errors import ContractError

_SERVER = re.compile(r"([^=,]+)=([^=,]+):(\d+)")


@dataclass(frozen=True, slots=True)
class ReduceServer:
    """The server of one helper host: the host's name, and the address and TCP port to connect to."""

    host: str
    address: str
    port: int


def encode(servers: Sequence[ReduceServer]) -> str:
    """Write servers as one word, in their order.

    >>> encode([ReduceServer("algo-3", "10.0.0.5", 7601), ReduceServer("algo-4", "fd00::6", 7601)])
    'algo-3=10.0.0.5:7601,algo-4=fd00::6:7601'
    """
    return ",".join(f"{server.host}={server.address}:{server.port}" for server in servers)


def decode(text: str) -> tuple[ReduceServer, ...]:
    """Read what `encode` wrote; an empty text is no servers. Raises `ContractError` for anything else.

    >>> decode("algo-3=10.0.0.5:7601")
    (ReduceServer(host='algo-3', address='10.0.0.5', port=7601),)
    """
    servers = []
    for part in text.split(",") if text else ():
        match = _SERVER.fullmatch(part)
        if match is None:
            raise ContractError(f"a list of reduce servers: {part!r} is not HOST=ADDRESS:PORT")
        servers.append(ReduceServer(match[1], match[2], int(match[3])))
    return tuple(servers)
