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
# A shell's exit code for a program that it cannot find.
_NOT_FOUND = 127


class Daemons:
    """Passes the requests of mpirun's agents on, and runs the daemons of this host."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        # Agents by their number; None for one that has its answer, or has left.
        self._agents: list[Wire | None] = []
        # Daemons of this host by pid, with the numbers of their agents.
        self._running: dict[int, tuple[int, Sidecar]] = {}
        context.watched.append(lambda: {f"mpirun's daemon {number}": pid for pid, (number, _) in self._running.items()})

    def ask(self, wire: Wire, message: Message) -> None:
        """Pass on the request of an agent, which then waits on `wire` for the end of its daemon.

        Raises `KeyError`, `TypeError` or `ValueError` for a message that is no such request.
        """
        request = _request(message)
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
        self._context.report({**request, "number": number})

    def spawn(self, order: Spawn, environment: Mapping[str, str]) -> None:
        """Start a daemon on this host, without a shell; report one that cannot start as ended."""
        # Few jobs run mpirun's daemons.
        import shutil

        from herringbone_entry.launchers.mpi_agent import expand

        variables = {**environment, **expand(order["variables"], environment)}
        program, *arguments = order["argv"]
        path = shutil.which(program, path=variables.get("PATH"))
        try:
            if path is None:
                raise FileNotFoundError(f"{program}: not found; PATH is {variables.get('PATH')}")
            daemon = Sidecar([path, *arguments], variables, self._context)
        except OSError as error:
            self._report_end(order["number"], _NOT_FOUND, [f"{self._context.host.name}: {error}"])
            return
        self._running[daemon.pid] = (order["number"], daemon)

    def reaped(self, pid: int, returncode: int) -> None:
        """Report the end of a daemon; a child that is no daemon is ignored."""
        if pid not in self._running:
            return
        number, daemon = self._running.pop(pid)
        code, lines = exit_code_of(returncode), list(daemon.last_lines()[-_TAIL_LINES:])
        self._report_end(number, code, lines if code else [], killed=daemon.was_killed(returncode))

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

    def wake(self) -> bool:
        """End a sleep of this host's daemons; say whether there are any."""
        for _, daemon in self._running.values():
            daemon.wake()
        return bool(self._running)

    def _report_end(self, number: int, code: int, tail: list[str], *, killed: bool = False) -> None:
        first = self._context.host.resources.first_host
        self._context.report(
            {"kind": "daemon_ended", "host": first, "number": number, "code": code, "killed": killed, "tail": tail}
        )

    def _close(self, number: int) -> None:
        wire, self._agents[number] = self._agents[number], None
        if wire is not None:
            self._context.loop.forget(wire.fileno())
            wire.close()


def _request(message: Message) -> Spawn:
    """Return an agent's request, checked: any process of the user's can send one. Its number is still to come."""
    argv, variables = [str(word) for word in message["argv"]], dict(message["variables"])
    if not argv or "\0" in "".join([*argv, *variables, *variables.values()]):
        raise ValueError("no argument vector")
    return {"kind": "spawn", "host": str(message["host"]), "number": 0, "argv": argv, "variables": variables}
