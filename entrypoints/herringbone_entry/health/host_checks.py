"""One host's part in the checks before the start: it obeys the orders `check`, and reports `checked`.

"local" starts the program `examine`, in the Python and the environment of the ranks; "links" goes to it; "end" ends it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from herringbone_contract.faults.health import SHARED_MEMORY
from herringbone_entry import processes
from herringbone_entry.channel import interfaces
from herringbone_entry.channel.reserved_port import ReservedPort
from herringbone_entry.health.examine import command
from herringbone_entry.health.preflight import check
from herringbone_entry.host_context import HostContext
from herringbone_entry.preparation.prepare import Prepared

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Check

_READ_BYTES = 1 << 20


class HostChecks:
    """Checks one host; all methods run in the loop's thread. `address` is the host's own, as the others see it."""

    def __init__(self, context: HostContext, prepared: Prepared, address: str | None) -> None:
        self._context, self._prepared, self._address = context, prepared, address
        self._link: socket.socket | None = None
        self._pid = 0
        self._received = b""
        self._ask = ""
        # Where torch meets, if this host turns out to be the first of those that sum.
        self._port: ReservedPort | None = None

    def obey(self, order: Check) -> None:
        """Obey an order."""
        request = dict(order["request"])
        if request["ask"] == "look":
            check(request["names"], self._context, self._prepared.environment, self._address)
        elif request["ask"] == "end":
            self._end()
        else:
            self._examine(request)

    def _examine(self, request: dict[str, Any]) -> None:
        host = self._context.host
        if request["ask"] == "local":
            self._port = ReservedPort()
            request |= {"folders": [str(host.paths.model), SHARED_MEMORY]}
            request |= {"gpus": int(self._prepared.environment["SM_NUM_GPUS"])}
        elif host.name not in request["hosts"]:
            return
        else:
            request["rank"] = request["hosts"].index(host.name)
            if self._port is not None:
                self._port.release()
        self._ask = request["ask"]
        try:
            if self._link is None:
                self._link = self._start()
            self._link.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self._report({"trouble": f"the check cannot be started: {error}"})

    def _start(self) -> socket.socket:
        host = self._context.host
        interface = interfaces.interface_of(host, self._address, interfaces.interfaces())
        environment = {
            **host.base_environment,
            **self._prepared.environment,
            **interfaces.variables(host, interface),
        }
        ours, theirs = socket.socketpair()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            argv = command(self._prepared.python, theirs.fileno())
            self._pid = processes.spawn(argv, environment, stdout=nowhere, stderr=nowhere, inherit=[theirs.fileno()])
        finally:
            theirs.close()
            os.close(nowhere)
        self._context.loop.read(ours.fileno(), self._read)
        return ours

    def _read(self) -> None:
        assert self._link is not None
        try:
            chunk = self._link.recv(_READ_BYTES)
        except OSError:
            chunk = b""
        self._received += chunk
        if not chunk:
            self._pid = 0
            self._end()
            self._report({"trouble": "the program that examines this host has ended; a broken driver may end it"})
        elif self._received.endswith(b"\n"):
            report, self._received = json.loads(self._received), b""
            self._report({**report, "port": 0 if self._port is None else self._port.number})

    def _report(self, report: dict[str, Any]) -> None:
        self._context.report({"kind": "checked", "ask": self._ask, "report": report})

    def _end(self) -> None:
        if self._link is not None:
            self._context.loop.forget(self._link.fileno())
            self._link.close()
            self._link = None
        if self._port is not None:
            self._port.release()
        # A program whose driver hangs would not see that its socket is closed.
        if self._pid:
            processes.send(self._pid, signal.SIGKILL)
            self._pid = 0
