"""The parts of a supervisor that nearly everything on its host needs, as one value."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from herringbone_contract.constants import line_prefix
from herringbone_entry import processes
from herringbone_entry.event_loop import Loop
from herringbone_entry.host import Host
from herringbone_entry.ranks.output import Output

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Event


class HostContext:
    """One host, its event loop, its output, and the way to the coordinator: `report` takes an event."""

    def __init__(self, host: Host, loop: Loop, output: Output, report: Callable[[Event], None]) -> None:
        self.host, self.loop, self.output, self.report = host, loop, output, report
        # The text in front of each line that is not a rank's.
        self.prefix = line_prefix(host.name)
        # Called with the whole lines of the observer's events, each one a JSON object, before they are printed.
        self.listeners: list[Callable[[bytes], None]] = []

        # Each returns processes of this host that the job needs: pids by name.
        self.watched: list[Callable[[], Mapping[str, int]]] = []

    def log(self, text: str) -> None:
        """Print lines of the supervisor's own."""
        # A text may hold the name of a file that is not UTF-8, which must not end the supervisor.
        lines = (line.encode("utf-8", "backslashreplace") for line in text.splitlines())
        self.output.write(b"".join(self.prefix + line + b"\n" for line in lines))

    def beat(self) -> None:
        """Show the controller, from now on, that this host is alive when it has nothing else to print."""
        if not self.output.full:
            event = {"kind": "alive", "t": time.time(), "every": self.host.heartbeat}
            needed = [item for pids in self.watched for item in pids().items()]
            if stopped := [name_of_stopped(name, pid) for name, pid in needed if processes.is_stopped(pid)]:
                event["stopped"] = stopped
            self.send_event(event)
        self.loop.later(self.host.heartbeat, self.beat)

    def send_event(self, event: dict[str, Any]) -> None:
        """Print an event of the supervisor's own. Raises `ValueError` for one that is too long.

        >>> context.send_event({"kind": "hang", "t": time.time(), "since": 1.0, "why": "..."})    # doctest: +SKIP
        """
        # Most jobs send none, and none at their start.
        from herringbone_contract.events.format import EVENT_MARK, encode

        self.output.write(self.prefix + EVENT_MARK + encode(event))


def name_of_stopped(name: str, pid: int) -> str:
    """Return what `alive` events say about a process that somebody has stopped.

    >>> name_of_stopped("rank 0", 4711)
    'rank 0 (process 4711) is stopped; `kill -CONT 4711` on its host lets it go on'
    """
    return f"{name} (process {pid}) is stopped; `kill -CONT {pid}` on its host lets it go on"
