"""The protocol of a transport: connect to a machine, and copy folders to it and from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.transport.connection import Connection
from herringbone_contract.errors import HostError

_THREADS = 32
_Item = TypeVar("_Item")
Machine = TypeVar("Machine", contravariant=True)


class Transport(Protocol[Machine]):
    """Reaches machines. Raises `HostError` with a remedy when a machine cannot be reached."""

    def connect(self, machine: Machine) -> Connection:
        """Start to connect and return at once; the first request reports whether the connection came about."""

    def words(self, machine: Machine, command: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the words of a local program that runs a command on the machine, with or without a terminal."""

    def port_words(self, machine: Machine, port: int) -> list[str]:
        """Return the words that join standard input and output with a port of the machine's loopback interface."""

    def send(self, machine: Machine, local: Path, remote: str) -> None:
        """Make the folder `remote` equal to the folder `local`, links followed; put a single file into `remote`."""

    def fetch(self, machine: Machine, remote: str, local: Path, *, every_kind: bool = False) -> None:
        """Make the folder `local` equal to the folder `remote`; links that lead out of it are left out.

        With `every_kind` all links come as they are, and FIFOs and sockets too: for callers that open the files
        through `safe_tree`, and report what they leave out.
        """


def ask_each(
    transport: Transport[Machine], machines: Iterable[Machine], *requests: Message, timeout: float | None = None
) -> list[Message | HostError]:
    """Send every machine these requests over a new connection; return each one's last answer, or its error."""

    def ask(machine: Machine) -> Message | HostError:
        answer: Message = {}
        try:
            with transport.connect(machine) as connection:
                for request in requests:
                    answer = connection.ask(request, timeout=timeout)
        except HostError as error:
            return error
        return answer

    return in_parallel(ask, list(machines))


def in_parallel(call: Callable[[_Item], Any], items: Sequence[_Item] | Mapping[_Item, Any]) -> list[Any]:
    """Call for each item in a thread of its own; when all have ended, raise all their errors as one."""
    with ThreadPoolExecutor(_THREADS) as pool:
        calls = [pool.submit(call, item) for item in items]
    errors = [error for future in calls if (error := future.exception()) is not None]
    if errors and len(errors) > 1 and all(isinstance(error, HostError) for error in errors):
        raise HostError("\n  ".join([f"{len(errors)} machines:", *map(str, errors)]))
    if errors:
        raise errors[0]
    return [future.result() for future in calls]
