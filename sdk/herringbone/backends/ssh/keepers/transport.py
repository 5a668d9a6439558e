"""The transport of a holder: the job's machines over connections between keepers, in the place of ssh.

Connection.send ---> pipe ---> relay ---> sealed connection ---> keeper ---> agent
Connection.messages <- pipe <- relay <---
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from herringbone.backends.ssh.agent.messages import Message, Unpacker
from herringbone.backends.ssh.keepers.gate import bare_start
from herringbone.backends.ssh.keepers.sealed import PIECE_BYTES, Sealed
from herringbone.backends.ssh.keepers.trees import receive_tree, send_tree
from herringbone.backends.ssh.transport.connection import Connection
from herringbone.backends.ssh.transport.protocol import Transport
from herringbone_contract.channel.session import SealError
from herringbone_contract.errors import HerringboneError, HostError

if TYPE_CHECKING:
    from herringbone.backends.ssh.machines.inventory import Machine

# A machine, and what is wanted of its keeper -> the connection. Raises `HostError`.
Open = Callable[[str, Message], Sealed]
LOST = (OSError, EOFError, SealError, ValueError)


class KeeperTransport(Transport["Machine"]):
    """Reaches the keepers of a job's machines; `open_` opens a connection as the job's holder."""

    def __init__(self, open_: Open) -> None:
        self._open = open_

    def connect(self, machine: Machine) -> Connection:
        return KeeperConnection(machine.name, lambda: self._open(machine.name, {"kind": "agent"}))

    def words(self, machine: Machine, command: Sequence[str], *, terminal: bool) -> list[str]:
        raise NotImplementedError("machines run no commands for each other")

    def port_words(self, machine: Machine, port: int) -> list[str]:
        raise NotImplementedError("machines open no ports for each other")

    def send(self, machine: Machine, local: Path, remote: str) -> None:
        with self._copying(machine, {"kind": "take", "path": remote}) as sealed:
            send_tree(local, "", sealed)
            # The machine answers when it has everything.
            sealed.receive_message()

    def fetch(self, machine: Machine, remote: str, local: Path, *, every_kind: bool = False) -> None:  # noqa: ARG002
        with self._copying(machine, {"kind": "give", "path": remote}) as sealed:
            root = sealed.receive_message()["root"]
            receive_tree(sealed, local, root=root, shown=f"{machine.name}:{remote}")

    @contextlib.contextmanager
    def _copying(self, machine: Machine, request: Message) -> Iterator[Sealed]:
        sealed = self._open(machine.name, request)
        try:
            yield sealed
        except (*LOST, HerringboneError) as error:
            raise HostError(f"{machine.name}: {request['path']} could not be copied: {error}") from error
        finally:
            sealed.close()


class KeeperConnection(Connection):
    """A connection to a machine's agent; `open_` opens the sealed one, in a thread of its own."""

    def __init__(self, machine: str, open_: Callable[[], Sealed]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.machine = machine
        self._unpacker, self._numbers, self._ready = Unpacker(), itertools.count(1), []
        # The agent is running when it gets the first request.
        self._held_back = self._program = None
        self._out, self._arrived = os.pipe()
        self._outgoing, write = os.pipe()
        self._in: IO[bytes] = os.fdopen(write, "wb")
        os.set_blocking(self._out, False)
        self._why = "the connection is closed"
        self._is_closed, self._has_answered = False, True
        Thread(target=self._relay, args=(open_,), daemon=True).start()

    def send(self, message: Message, payload: bytes = b"") -> int:
        if message["ask"] == "start":
            message = {**message, "config": bare_start(message["config"])}
        return super().send(message, payload)

    def close(self, *, gracefully: bool = True) -> None:  # noqa: ARG002 - the relay ends by itself
        self.disconnect()
        if not self._is_closed:
            self._is_closed = True
            os.close(self._out)

    def _relay(self, open_: Callable[[], Sealed]) -> None:
        """Carry bytes in both directions until either end closes."""
        try:
            sealed = open_()
        except HerringboneError as error:
            self._why = str(error).removeprefix(f"{self.machine}: ")
            os.close(self._outgoing)
            os.close(self._arrived)
            return
        Thread(target=self._relay_requests, args=(sealed,), daemon=True).start()
        # A closed pipe: nobody reads the answers any more.
        with contextlib.suppress(*LOST):
            while True:
                write_all(self._arrived, sealed.receive())
        sealed.close()
        os.close(self._arrived)

    def _relay_requests(self, sealed: Sealed) -> None:
        with contextlib.suppress(*LOST):
            while chunk := os.read(self._outgoing, PIECE_BYTES):
                sealed.send(chunk)
        sealed.close()
        os.close(self._outgoing)

    def _why_closed(self) -> str:
        return self._why


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes. Raises `OSError`."""
    rest: Any = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
