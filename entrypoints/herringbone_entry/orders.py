"""What a supervisor tells a rank: its environment, and what to run."""

from __future__ import annotations

import os

from herringbone_entry.environment import rank_environment
from herringbone_entry.host import Host
from herringbone_entry.launchers import torch_distributed
from herringbone_entry.layout import Place
from herringbone_entry.prepare import Prepared
from herringbone_entry.wire import Message
from herringbone_spec.launcher import Launcher


def orders_of(
    place: Place, prepared: Prepared, host: Host, *, master: tuple[str, int], interface: str | None
) -> Message:
    """Return the orders of one rank; `master` is address and port of rank 0's host, `interface` leads to the others.

    `environment` holds what the rank does not inherit, neither from its supervisor nor through mpirun.
    """
    inherited = host.base_environment
    environment = {**prepared.environment, **rank_environment(place, master_address=master[0], master_port=master[1])}
    if prepared.launcher is Launcher.TORCH_DISTRIBUTED:
        environment |= torch_distributed.environment(place, run_id=host.job_name or "none", inherited=inherited)
    if interface is not None:
        # On one machine NCCL finds better ways than the loopback interface.
        names = ["GLOO_SOCKET_IFNAME"] if host.on_one_machine else ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
        environment |= {name: interface for name in names if name not in inherited}
    if prepared.shim is not None:
        # Behind what the user has there; for the rank's own children, which inherit no sys.path.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [inherited.get("PYTHONPATH"), prepared.shim]))
    return {
        "environment": environment,
        "code": str(host.paths.code),
        "entry": prepared.program.entry,
        "program": prepared.program.name,
        "arguments": list(prepared.arguments),
        "paths": [prepared.shim] if prepared.shim else [],
    }
