"""mpirun as one host sees it: the ranks that it starts and that attach, its daemons, on the first host itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.failure import Failure, exit_code_of, lost_process
from herringbone_contract.layout import Layout
from herringbone_entry.channel import attach
from herringbone_entry.channel.acceptor import Acceptor
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.host_context import HostContext
from herringbone_entry.launchers import mpi, plain
from herringbone_entry.preparation.prepare import Prepared
from herringbone_entry.sidecars.mpi_daemons import Daemons
from herringbone_entry.sidecars.sidecar import Sidecar

if TYPE_CHECKING:
    import signal

    from herringbone_entry.channel.messages import DaemonEnded, LauncherEnded, Spawn

# mpirun's agents attach at the same socket as the ranks.
_MAX_AGENTS = 16


class Mpirun:
    """Listens for the processes that mpirun starts on this host; on the first host, also starts mpirun.

    `on_rank` is called with the wire and the first message of each rank that attaches. Raises `LaunchError` when there
    is no folder for the socket.
    """

    def __init__(
        self, prepared: Prepared, context: HostContext, run_folder: str, on_rank: Callable[[Wire, Message], None]
    ) -> None:
        self._prepared, self._context, self._run_folder, self._on_rank = prepared, context, run_folder, on_rank
        # A host without mpirun needs these as well: the first host's mpirun may order a daemon here.
        self._environment: dict[str, str] = {}
        self._daemons = Daemons(context)
        # Only on the first host, and only while mpirun runs.
        self._process: Sidecar | None = None
        path = attach.socket_path(run_folder, context.host.name)
        backlog = prepared.num_processes + _MAX_AGENTS
        self._acceptor: Acceptor | None = Acceptor(path, backlog, context.loop, self._receive_hello)

    @property
    def runs(self) -> bool:
        """True while mpirun itself runs on this host."""
        return self._process is not None

    def start(self, layout: Layout, interface: str | None) -> None:
        """Start mpirun on the first host; it starts the ranks, which then attach to their own hosts.

        `interface` leads to the other hosts.
        """
        prepared, host = self._prepared, self._context.host
        across = not host.on_one_machine
        self._environment = {
            # On one machine MPI finds the processes by itself, without a network interface.
            **mpi.launch_environment(
                host.base_environment, self._run_folder, interface if across else None, across=across
            ),
            attach.LAYOUT: layout.encode(),
            attach.RUN_FOLDER: self._run_folder,
        }
        if prepared.mpi is None:
            return
        assert prepared.mpi_options is not None
        argv = mpi.argv(prepared.mpi, layout, plain.rank_argv(prepared.python), prepared.mpi_options, across=across)
        environment = self._environment
        if across:
            from herringbone_entry.launchers import mpi_agent

            # mpirun would start its daemons by ssh; it runs this script in place of ssh.
            path = Path(self._run_folder) / "agent"
            path.write_text(mpi_agent.script(sys.executable, attach.socket_path(self._run_folder, host.name)))
            environment = {**mpi.agent_environment(str(path)), **environment}
        self._process = Sidecar(argv, environment, self._context)
        self._context.watched.append(lambda: {} if self._process is None else {"mpirun": self._process.pid})

    def reaped(self, pid: int, returncode: int) -> LauncherEnded | None:
        """Note the end of a daemon, or return the event for mpirun's own end; any other child is ignored."""
        self._daemons.reaped(pid, returncode)
        process = self._process
        if process is None or pid != process.pid:
            return None
        # From here on its pid may be another process's, so no signal may go there.
        self._process = None
        assert self._prepared.mpi is not None
        host = self._context.host
        code = exit_code_of(returncode)
        message = "mpirun ended before its ranks did; its last lines say why"
        killed = process.was_killed(returncode)
        failure = Failure(host.name, None, code, "LaunchError", message, (), process.last_lines())
        if killed:
            failure = lost_process(host.name, "mpirun ended before its ranks did", code, failure.log_tail)
        # Under mpirun only mpirun sees which signal killed a rank: the rank is not our child.
        rank_code = mpi.rank_exit_code(self._prepared.mpi.implementation, returncode, across=not host.on_one_machine)
        return {
            "kind": "launcher_ended",
            "code": code,
            "rank_code": rank_code,
            "killed": killed,
            "failure": failure.to_json(),
        }

    def spawn(self, order: Spawn) -> None:
        """Start a daemon of mpirun's on this host."""
        self._daemons.spawn(order, self._environment)

    def daemon_ended(self, order: DaemonEnded) -> None:
        """Answer mpirun's agent for a daemon on another host."""
        self._daemons.ended(order)

    def mute(self) -> None:
        """Print nothing more of mpirun and its daemons."""
        self._daemons.mute()
        if self._process is not None:
            self._process.mute()

    def signal(self, number: signal.Signals) -> None:
        """Signal mpirun, if it runs on this host."""
        if self._process is not None:
            self._process.signal(number)

    def wake(self) -> bool:
        """End a sleep of mpirun or its daemons on this host; say whether any of them runs.

        Open MPI sleeps for a second before and after the SIGTERM that it sends to ranks, also when none is left.
        """
        if self._process is not None:
            self._process.wake()
        return self._daemons.wake() or self.runs

    def close(self) -> None:
        """Let no process attach any more; a second call is void."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def _receive_hello(self, wire: Wire, hello: Message) -> None:
        """Take a rank, or an agent that asks for a daemon."""
        if hello.get("kind") == "spawn":
            self._daemons.ask(wire, hello)
        else:
            self._on_rank(wire, hello)
