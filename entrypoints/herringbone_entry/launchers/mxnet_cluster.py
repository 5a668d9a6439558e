"""MXNet's `parameter_server`: what `DMLC_*` say to each rank, and to the processes beside it. Pure.

worker       every rank
server       one on each host that has a rank
scheduler    one, on rank 0's host; it tells the others of each other, and holds no parameters

Source: "Distributed Training in MXNet" (mxnet.apache.org) for the roles; SageMaker's containers for who has which.
"""

from __future__ import annotations

from typing import Literal

from herringbone_entry.launchers.data_parallel import Meeting

Role = Literal["worker", "server", "scheduler"]

_LOOPBACK = "127.0.0.1"
# As in `plain`: no folder of the user's stands first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.sidecars.mxnet_server import main; main()"
)


def environment(
    role: Role, meeting: Meeting, *, hosts: int, on_one_machine: bool, interface: str | None
) -> dict[str, str]:
    """Return what a process of this role finds, one of a job with so many `hosts` that have a rank.

    >>> environment("worker", Meeting("10.0.0.1", 7000, 7001), hosts=2, on_one_machine=False, interface="eth0")
    ... # doctest: +NORMALIZE_WHITESPACE
    {'DMLC_ROLE': 'worker', 'DMLC_PS_ROOT_URI': '10.0.0.1', 'DMLC_PS_ROOT_PORT': '7000',
     'DMLC_NUM_WORKER': '2', 'DMLC_NUM_SERVER': '2', 'DMLC_INTERFACE': 'eth0'}

    `interface` leads to the other hosts; without one MXNet takes the first that it finds.
    """
    values = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": meeting.address,
        "DMLC_PS_ROOT_PORT": str(meeting.port),
        "DMLC_NUM_WORKER": str(hosts),
        "DMLC_NUM_SERVER": str(hosts),
    }
    if on_one_machine:
        # Nobody else may reach them: they ask nobody who he is.
        return {**values, "DMLC_NODE_HOST": _LOOPBACK}
    return values if interface is None else {**values, "DMLC_INTERFACE": interface}


def server_argv(python: str) -> list[str]:
    """Return the command of a server or a scheduler."""
    return [python, "-c", _START]
