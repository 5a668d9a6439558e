"""TensorFlow's own strategies: `TF_CONFIG` of each rank and of the parameter server next to it. Pure.

multi_worker_mirrored_strategy    every rank is a worker
parameter_server                  rank 0 is the chief and the others are workers; each has a parameter server next to it

Source: "Distributed training with TensorFlow" (tensorflow.org) for the roles; SageMaker's containers for their hosts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from herringbone_entry.channel.rendezvous import TensorFlowServers

VARIABLE = "TF_CONFIG"
# As in `plain`: no folder of the user's comes first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; "
    "from herringbone_entry.sidecars.parameter_server import main; main()"
)


def rank_config(servers: Sequence[TensorFlowServers], rank: int) -> str:
    """Return `TF_CONFIG` of a rank; `servers` are those of all hosts, by rank.

    >>> rank_config([TensorFlowServers("algo-1", 7000), TensorFlowServers("algo-2", 7000)], 1)
    '{"cluster":{"worker":["algo-1:7000","algo-2:7000"]},"environment":"cloud","task":{"index":1,"type":"worker"}}'
    """
    if servers[rank].parameters is None:
        return _encode(servers, "worker", rank)
    return _encode(servers, "worker", rank - 1) if rank else _encode(servers, "chief", 0)


def server_config(servers: Sequence[TensorFlowServers], rank: int) -> str:
    """Return `TF_CONFIG` of the parameter server next to a rank."""
    return _encode(servers, "ps", rank)


def server_argv(python: str) -> list[str]:
    """Return the command of a parameter server."""
    return [python, "-c", _START]


def _encode(servers: Sequence[TensorFlowServers], role: str, index: int) -> str:
    ranks = [_joined(host.address, host.rank) for host in servers]
    parameters = [_joined(host.address, host.parameters) for host in servers if host.parameters is not None]
    cluster = {"worker": ranks}
    if parameters:
        # A role without a task must be absent: TensorFlow asks for the first task of each role.
        workers = {"worker": ranks[1:]} if ranks[1:] else {}
        cluster = {"chief": ranks[:1], **workers, "ps": parameters}
    config = {"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": role}}
    return json.dumps(config, separators=(",", ":"))


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
