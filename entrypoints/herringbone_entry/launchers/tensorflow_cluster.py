"""TensorFlow's own strategies: what `TF_CONFIG` says to each rank, and to the parameter server beside it. Pure.

multi_worker_mirrored_strategy    every rank is a worker
parameter_server                  rank 0 is the chief and the others are workers; beside each is a parameter server

Source: "Distributed training with TensorFlow" (tensorflow.org) for the roles; SageMaker's containers for who has which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from herringbone_contract.launcher import Launcher

VARIABLE = "TF_CONFIG"
# How many of TensorFlow's servers a host has under each launcher, and so how many ports.
NUM_SERVERS = {Launcher.MULTI_WORKER_MIRRORED: 1, Launcher.PARAMETER_SERVER: 2}
# As in `plain`: no folder of the user's stands first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; "
    "from herringbone_entry.sidecars.parameter_server import main; main()"
)


class Servers(NamedTuple):
    """Where TensorFlow's servers of one host listen; `parameters` is the parameter server's port, None without one."""

    address: str
    rank: int
    parameters: int | None = None


def rank_config(servers: Sequence[Servers], rank: int) -> str:
    """Return `TF_CONFIG` of a rank; `servers` are those of its host and the others, by rank.

    >>> rank_config([Servers("algo-1", 7000), Servers("algo-2", 7000)], 1)
    '{"cluster":{"worker":["algo-1:7000","algo-2:7000"]},"environment":"cloud","task":{"index":1,"type":"worker"}}'
    """
    if servers[rank].parameters is None:
        return _encode(servers, "worker", rank)
    return _encode(servers, "worker", rank - 1) if rank else _encode(servers, "chief", 0)


def server_config(servers: Sequence[Servers], rank: int) -> str:
    """Return `TF_CONFIG` of the parameter server beside a rank."""
    return _encode(servers, "ps", rank)


def server_argv(python: str) -> list[str]:
    """Return the command of a parameter server."""
    return [python, "-c", _START]


def _encode(servers: Sequence[Servers], role: str, index: int) -> str:
    ranks = [_joined(each.address, each.rank) for each in servers]
    parameters = [_joined(each.address, each.parameters) for each in servers if each.parameters is not None]
    cluster = {"worker": ranks}
    if parameters:
        # A role that nobody has must not be there: TensorFlow asks for its first task.
        workers = {"worker": ranks[1:]} if ranks[1:] else {}
        cluster = {"chief": ranks[:1], **workers, "ps": parameters}
    config = {"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": role}}
    return json.dumps(config, separators=(",", ":"))


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
