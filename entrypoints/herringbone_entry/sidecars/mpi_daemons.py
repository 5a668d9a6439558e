"""mpirun's daemons on the hosts, started through the control channel.

    first host                                              host
      mpirun -> agent --spawn--> supervisor -> coordinator --spawn--> supervisor -> daemon
                     <-- code, last lines ---------------- daemon_ended {code, tail} ----

Every supervisor has a `Daemons`: the first one for the agents that ask, each one for the daemons on its own host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from herringbone_contract.failure import exit_code_of
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.host_context import HostContext
from herringbone_entry.sidecars.sidecar import Sidecar

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import DaemonEnded, Spawn

_TAIL_LINES = 20


class Daemons:
    """Passes the requests of mpirun's agents on, and runs the daemons of this host."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        # Agents by their number; None for one that has its answer, or has left.
        self._agents: list[Wire | None] = []
        # Daemons of this host by pid, with the numbers of their agents.
        self._running: dict[int, tuple[int, Sidecar]] = {}

    def ask(self, wire: Wire, message: Message) -> None:
        """Pass on the request of an agent, which then waits on `wire` for the end of its daemon."""
        # Numbers are never reused: an answer may still be on its way when an agent leaves.
        number = len(self._agents)
        self._agents.append(wire)

        def notice_end() -> None:
            with contextlib.suppress(WireError, EOFError):
                if not wire.receive():
                    return
            # mpirun has ended its agent, and wants no answer any more.
            self._close(number)

        self._context.loop.read(wire.fileno(), notice_end)
        host, command = str(message["host"]), str(message["command"])
        self._context.report({"kind": "spawn", "host": host, "number": number, "command": command})

    def spawn(self, order: Spawn, environment: Mapping[str, str]) -> None:
        """Start a daemon on this host; mpirun wrote its command for a shell."""
        daemon = Sidecar(["/bin/sh", "-c", order["command"]], environment, self._context)
        self._running[daemon.pid] = (order["number"], daemon)

    def reaped(self, pid: int, returncode: int) -> None:
        """Report the end of a daemon; a child that is no daemon is ignored."""
        if pid not in self._running:
            return
        number, daemon = self._running.pop(pid)
        code, lines = exit_code_of(returncode), list(daemon.last_lines()[-_TAIL_LINES:])
        first = self._context.host.resources.first_host
        self._context.report(
            {"kind": "daemon_ended", "host": first, "number": number, "code": code, "tail": lines if code else []}
        )

    def ended(self, order: DaemonEnded) -> None:
        """Answer the agent of a daemon that has ended."""
        wire = self._agents[order["number"]]
        if wire is not None:
            with contextlib.suppress(OSError):
                wire.send({"code": order["code"], "tail": order["tail"]})
            self._close(order["number"])

    def mute(self) -> None:
        """Print nothing more of this host's daemons."""
        for _, daemon in self._running.values():
            daemon.mute()

    def _close(self, number: int) -> None:
        wire, self._agents[number] = self._agents[number], None
        if wire is not None:
            self._context.loop.forget(wire.fileno())
            wire.close()
