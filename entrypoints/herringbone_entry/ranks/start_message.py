"""What a supervisor tells a rank: its environment, and what to run."""

from __future__ import annotations

import os

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.launcher import Launcher
from herringbone_entry.channel.frames import Message
from herringbone_entry.host import Host
from herringbone_entry.launchers import mxnet_cluster, tensorflow_cluster, torch_distributed
from herringbone_entry.launchers.data_parallel import Meeting, rendezvous
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.ranks.environment import rank_environment
from herringbone_entry.ranks.layout import Place


def orders_of(
    place: Place, prepared: Prepared, host: Host, *, meeting: Meeting, interface: str | None, token: str
) -> Message:
    """Return the orders of one rank; `interface` leads to the other hosts, `token` is what the job's ranks know.

    `environment` holds what the rank does not inherit, neither from its supervisor nor through mpirun. Each of
    `secrets` becomes a descriptor, which the variable of that name points to.
    """
    inherited = host.base_environment
    where = rank_environment(place, master_address=meeting.address, master_port=meeting.port)
    environment = {**prepared.environment, **where}
    secrets = {}
    if prepared.launcher is not Launcher.PLAIN:
        # Whatever started the ranks: a script may use the library under any launcher.
        environment |= rendezvous(meeting)
        secrets[ReduceVariable.TOKEN_FILE] = token
    if prepared.launcher is Launcher.TORCH_DISTRIBUTED:
        environment |= torch_distributed.environment(place, run_id=host.job_name or "none", inherited=inherited)
    if meeting.tensorflow:
        environment[tensorflow_cluster.VARIABLE] = tensorflow_cluster.rank_config(meeting.tensorflow, place.rank)
    if prepared.launcher is Launcher.MXNET_PARAMETER_SERVER:
        environment |= mxnet_cluster.environment(
            "worker", meeting, hosts=place.num_hosts, on_one_machine=host.on_one_machine, interface=interface
        )
    if interface is not None:
        # On one machine NCCL finds better ways than the loopback interface.
        names = ["GLOO_SOCKET_IFNAME"] if host.on_one_machine else ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
        environment |= {name: interface for name in names if name not in inherited}
    if prepared.shims:
        # Behind what the user has there; for the rank's own children, which inherit no sys.path.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [inherited.get("PYTHONPATH"), *prepared.shims]))
    return {
        "environment": environment,
        "code": str(host.paths.code),
        "entry": prepared.program.entry,
        "program": prepared.program.name,
        "arguments": list(prepared.arguments),
        "paths": list(prepared.shims),
        "secrets": secrets,
    }
