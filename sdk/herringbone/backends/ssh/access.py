"""The way into a host on a machine: ssh runs `agent.enter` there, which knows whether the host is a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone.backends.ssh.inventory import Machine
    from herringbone.backends.ssh.transport.protocol import Transport


class MachineWays:
    """The words that reach one host; `place` is the agent's answer of that name.

    A container shares the machine's network, so its ports are the machine's.
    """

    def __init__(
        self, transport: Transport[Machine], machine: Machine, job: str, host: str, place: Mapping[str, str]
    ) -> None:
        self._transport, self._machine, self._job, self._host, self._place = transport, machine, job, host, place

    def enter(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        # -I: neither PYTHONPATH nor files in the login folder can replace modules.
        words = [self._place["python"], "-I", "-m", "herringbone.backends.ssh.agent.enter"]
        words += [self._place["work"], self._job, self._host, *command]
        return self._transport.words(self._machine, words, terminal=terminal)

    def relay(self, port: int) -> list[str]:
        return self._transport.port_words(self._machine, port)
