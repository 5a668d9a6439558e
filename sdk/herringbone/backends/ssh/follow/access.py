"""Looking into a running job on machines: a shell on its hosts, and requests to its supervisors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from herringbone.access.requests import Lines
from herringbone.backends.ssh.transport.protocol import in_parallel
from herringbone_contract.errors import HostError

if TYPE_CHECKING:
    from herringbone.backends.ssh.machines.inventory import Machine
    from herringbone.backends.ssh.transport.connection import Connection
    from herringbone.backends.ssh.transport.protocol import Transport
    from herringbone_contract.events.format import Event
    from herringbone_contract.events.requests import Request


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


class MachineAnswers:
    """Sends a request to the machines of a job, by host, and reads the events that they send back.

    Raises `HostError` when no machine has taken the request; a machine that has not answers with its error.
    """

    def __init__(self, job: str, machines: Mapping[str, Machine], transport: Transport[Machine], request: Request):
        self._connections: dict[str, Connection] = {}
        self._lines = {host: Lines() for host in machines}
        self._failed: list[Event] = []

        def send(host: str) -> HostError | None:
            connection = None
            try:
                connection = transport.connect(machines[host])
                connection.ask({"ask": "request", "job": job, "host": host, "request": request})
            except HostError as error:
                if connection is not None:
                    connection.close()
                return error
            self._connections[host] = connection
            return None

        errors = dict(zip(machines, in_parallel(send, machines), strict=True))
        if not self._connections:
            raise next(error for error in errors.values() if error is not None)
        self._id = request["id"]
        for host, error in errors.items():
            if error is not None:
                self._fail(host, error)

    def read(self) -> list[Event]:
        events, self._failed = self._failed, []
        for host, connection in list(self._connections.items()):
            try:
                for message, payload in connection.messages():
                    # All other messages are about rows and logs, which nobody asked for on this connection.
                    if "log" in message:
                        events += self._lines[host].feed(payload)
            except HostError as error:
                self._connections.pop(host).close()
                self._fail(host, error)
        return events

    def close(self) -> None:
        for connection in self._connections.values():
            connection.disconnect()
        for connection in self._connections.values():
            with contextlib.suppress(HostError):
                connection.close()

    def _fail(self, host: str, error: HostError) -> None:
        event = {"kind": "answer", "t": time.time(), "host": host, "id": self._id, "text": "", "error": str(error)}
        self._failed.append(event)
