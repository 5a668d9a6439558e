"""MXNet's `parameter_server`: the `DMLC_*` variables of each rank and of the servers next to it. Pure.

worker       every rank
server       one on each host that has a rank
scheduler    one, on rank 0's host; it introduces the others to each other, and holds no parameters

Source: "Distributed Training in MXNet" (mxnet.apache.org) for the roles; SageMaker's containers for their hosts.
"""

from __future__ import annotations

from typing import Literal

from herringbone_entry.channel.rendezvous import Rendezvous

Role = Literal["worker", "server", "scheduler"]

_LOOPBACK = "127.0.0.1"
# As in `plain`: no folder of the user's comes first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.sidecars.mxnet_server import main; main()"
)


def environment(
    role: Role, rendezvous: Rendezvous, *, hosts: int, on_one_machine: bool, interface: str | None
) -> dict[str, str]:
    """Return the variables of a process with this role, in a job in which `hosts` hosts have a rank.

    >>> environment("worker", Rendezvous("10.0.0.1", 7000, 7001), hosts=2, on_one_machine=False, interface="eth0")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'DMLC_PS_ROOT_PORT': '7000',
     'DMLC_NUM_WORKER': '2', 'DMLC_NUM_SERVER': '2', 'DMLC_INTERFACE': 'eth0'}

    `interface` leads to the other hosts; without it MXNet takes the first interface that it finds.
    """
    values = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": rendezvous.address,
        "DMLC_PS_ROOT_PORT": str(rendezvous.port),
        "DMLC_NUM_WORKER": str(hosts),
        "DMLC_NUM_SERVER": str(hosts),
    }
    if on_one_machine:
        # MXNet's servers trust every process that connects, so no other machine may reach them.
        return {**values, "DMLC_NODE_HOST": _LOOPBACK}
    return values if interface is None else {**values, "DMLC_INTERFACE": interface}


def server_argv(python: str) -> list[str]:
    """Return the command of a server or a scheduler."""
    return [python, "-c", _START]
