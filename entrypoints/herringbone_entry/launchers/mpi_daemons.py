"""mpirun's daemons on the hosts, started through the control channel.

    first host                                              host
      mpirun -> agent --spawn--> supervisor -> coordinator --spawn--> supervisor -> daemon
                     <-- code, last lines ---------------- daemon_ended {code, tail} ----

A supervisor has this on every host: the first one for the agents that ask, each one for daemons of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from herringbone_contract.failure import exit_code_of
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.ranks.output import Output
from herringbone_entry.sidecars.sidecar import Companion
from herringbone_entry.supervisor.event_loop import Loop

_TAIL_LINES = 20


class Daemons:
    """`prefix` goes before each line that a daemon of this host prints; `tell` takes events for the coordinator."""

    def __init__(self, loop: Loop, output: Output, prefix: bytes, tell: Callable[[Message], None]) -> None:
        self._loop, self._output, self._prefix, self._tell = loop, output, prefix, tell
        self._agents: list[Wire | None] = []
        self._running: dict[int, tuple[int, Companion]] = {}

    def ask(self, wire: Wire, message: Message) -> None:
        """An agent of mpirun's wants a daemon on some host."""
        number = len(self._agents)
        self._agents.append(wire)

        def hang_up() -> None:
            with contextlib.suppress(WireError, EOFError):
                if not wire.receive():
                    return
            # mpirun has ended its agent, and wants no answer any more.
            self._close(number)

        self._loop.read(wire.fileno(), hang_up)
        host, command = str(message["host"]), str(message["command"])
        self._tell({"kind": "spawn", "host": host, "number": number, "command": command})

    def spawn(self, order: Message, environment: Mapping[str, str]) -> None:
        """Start a daemon on this host; its command is one for the shell, as mpirun wrote it."""
        argv = ["/bin/sh", "-c", order["command"]]
        daemon = Companion(argv, environment, self._loop, self._output, self._prefix)
        self._running[daemon.pid] = (order["number"], daemon)

    def reaped(self, pid: int, returncode: int) -> None:
        """A child of this process has ended; if it was a daemon, its agent must hear so."""
        if pid not in self._running:
            return
        number, daemon = self._running.pop(pid)
        code, lines = exit_code_of(returncode), daemon.last_words()[-_TAIL_LINES:]
        self._tell({"kind": "daemon_ended", "number": number, "code": code, "tail": lines if code else []})

    def ended(self, order: Message) -> None:
        """A daemon has ended on its host: tell the agent that stands for it here."""
        wire = self._agents[order["number"]]
        if wire is not None:
            with contextlib.suppress(OSError):
                wire.send({"code": order["code"], "tail": order["tail"]})
            self._close(order["number"])

    def mute(self) -> None:
        for _, daemon in self._running.values():
            daemon.mute()

    def _close(self, number: int) -> None:
        wire, self._agents[number] = self._agents[number], None
        if wire is not None:
            self._loop.forget(wire.fileno())
            wire.close()
