"""mpirun on the first host: how it is started, and what its end means."""

from __future__ import annotations

import sys
from pathlib import Path

from herringbone_contract.constants import line_prefix
from herringbone_contract.failure import Failure, exit_code_of
from herringbone_entry.channel.frames import Message
from herringbone_entry.host import Host
from herringbone_entry.launchers import mpi, mpi_agent, plain
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.ranks import attach
from herringbone_entry.ranks.layout import Layout
from herringbone_entry.ranks.output import Output
from herringbone_entry.sidecars.sidecar import Companion
from herringbone_entry.supervisor.event_loop import Loop


def environment(host: Host, layout: Layout, run_folder: str, interface: str | None) -> dict[str, str]:
    """Return what mpirun and its daemons on this host start in, and pass on to the ranks of this host.

    `interface` leads to the other hosts.
    """
    known = None if host.on_one_machine else interface
    return {
        **mpi.launch_environment(host.base_environment, run_folder, known),
        attach.LAYOUT: layout.encode(),
        attach.RUN_FOLDER: run_folder,
    }


def start(
    prepared: Prepared,
    host: Host,
    layout: Layout,
    run_folder: str,
    surroundings: dict[str, str],
    loop: Loop,
    output: Output,
) -> Companion:
    """Start mpirun in `environment(...)`; it starts the ranks, which then attach to their own hosts."""
    assert prepared.mpi is not None
    assert prepared.mpi_options is not None
    across = not host.on_one_machine
    command = plain.rank_argv(prepared.python)
    argv = mpi.argv(prepared.mpi, layout, command, prepared.mpi_options, across=across)
    if across:
        path = Path(run_folder) / "agent"
        path.write_text(mpi_agent.script(sys.executable, attach.socket_path(run_folder, host.name)))
        surroundings = {**mpi.agent_environment(str(path)), **surroundings}
    return Companion(argv, surroundings, loop, output, line_prefix(host.name))


def ended(prepared: Prepared, host: Host, returncode: int, last_words: tuple[str, ...]) -> Message:
    """Return the event that says how mpirun ended."""
    assert prepared.mpi is not None
    code = exit_code_of(returncode)
    message = "mpirun ended before its ranks did; its last lines say why"
    found = Failure(host.name, None, code, "LaunchError", message, (), last_words)
    rank_code = mpi.rank_exit_code(prepared.mpi.implementation, returncode, across=not host.on_one_machine)
    return {"kind": "launcher_ended", "code": code, "rank_code": rank_code, "failure": found.to_json()}
