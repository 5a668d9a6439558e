"""mpirun on the first host: start it, and turn its end into an event."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.failure import Failure, exit_code_of
from herringbone_contract.layout import Layout
from herringbone_entry.channel import attach
from herringbone_entry.host import Host
from herringbone_entry.host_context import HostContext
from herringbone_entry.launchers import mpi, mpi_agent, plain
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.sidecars.sidecar import Sidecar

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import LauncherEnded


def environment(host: Host, layout: Layout, run_folder: str, interface: str | None) -> dict[str, str]:
    """Return the environment of mpirun and its daemons on this host, which this host's ranks inherit.

    `interface` leads to the other hosts.
    """
    # On one machine MPI finds the processes by itself, without a network interface.
    named_interface = None if host.on_one_machine else interface
    return {
        **mpi.launch_environment(host.base_environment, run_folder, named_interface),
        attach.LAYOUT: layout.encode(),
        attach.RUN_FOLDER: run_folder,
    }


def start(
    prepared: Prepared, context: HostContext, layout: Layout, run_folder: str, environment: dict[str, str]
) -> Sidecar:
    """Start mpirun, which starts the ranks; these then attach to their own hosts."""
    assert prepared.mpi is not None
    assert prepared.mpi_options is not None
    across = not context.host.on_one_machine
    command = plain.rank_argv(prepared.python)
    argv = mpi.argv(prepared.mpi, layout, command, prepared.mpi_options, across=across)
    if across:
        # mpirun would start its daemons by ssh; it runs this script in place of ssh.
        path = Path(run_folder) / "agent"
        path.write_text(mpi_agent.script(sys.executable, attach.socket_path(run_folder, context.host.name)))
        environment = {**mpi.agent_environment(str(path)), **environment}
    return Sidecar(argv, environment, context)


def ended_event(prepared: Prepared, host: Host, returncode: int, last_lines: tuple[str, ...]) -> LauncherEnded:
    """Return the event for mpirun's end."""
    assert prepared.mpi is not None
    code = exit_code_of(returncode)
    message = "mpirun ended before its ranks did; its last lines say why"
    failure = Failure(host.name, None, code, "LaunchError", message, (), last_lines)
    # Under mpirun only mpirun sees which signal killed a rank: the rank is not our child.
    rank_code = mpi.rank_exit_code(prepared.mpi.implementation, returncode, across=not host.on_one_machine)
    return {"kind": "launcher_ended", "code": code, "rank_code": rank_code, "failure": failure.to_json()}
