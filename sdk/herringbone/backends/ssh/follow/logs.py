"""The log and the events of an ssh job, as the machines send them, and at the end from the files on this machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from herringbone.backends.ssh.follow.files import FileKey, RemoteFiles
from herringbone.events.source import EventFile, by_time, decode_lines
from herringbone.records.logs import LogLine, parse_line

if TYPE_CHECKING:
    from pathlib import Path

    from herringbone.backends.ssh.follow.monitor import JobMonitor
    from herringbone_contract.events.format import Event

LOG = "log"
EVENTS = ("events", "metrics.events")


class RemoteLogs:
    """The log of a job, as a `LogSource`. `files` follows the hosts' logs."""

    def __init__(self, files: RemoteFiles, close: Callable[[], None]) -> None:
        self._files = files
        self._close = close
        self._monitor: JobMonitor | None = None
        self._silent: dict[str, str] = {}

    def read(self) -> list[LogLine]:
        lines = _parsed(self._files.read())
        return [*self._silence_lines(), *lines]

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - nothing arrives late
        yield from map(_parsed, self._files.rest())

    def close(self) -> None:
        self._close()

    def _silence_lines(self) -> list[LogLine]:
        """Return a line for each machine that has fallen silent, and for each that answers again, once."""
        if (monitor := self._files.monitor) is None:
            return []
        if monitor is not self._monitor:
            # Another attempt, on other machines.
            self._monitor, self._silent = monitor, {}
        before, self._silent = self._silent, monitor.silences()
        machines = {host: of_host.machine.name for host, of_host in monitor.hosts.items()}
        texts = {
            host: f"waiting for {machines[host]}: {why}" for host, why in self._silent.items() if host not in before
        }
        texts |= {host: f"{machines[host]} answers again" for host in before if host not in self._silent}
        now = datetime.now(timezone.utc)
        return [LogLine(host, None, now, text) for host, text in texts.items()]


class RemoteEvents:
    """The events of a job, as an `EventSource`.

    `files` follows the hosts' events. `here` are the events about the whole job, which are written on this machine.
    """

    def __init__(self, files: RemoteFiles, here: Path, close: Callable[[], None]) -> None:
        self._files = files
        self._here = EventFile(here)
        self._close = close

    def read(self) -> list[Event]:
        while lines := self._files.read():
            if events := self._joined(lines):
                return events
        return self._here.read()

    def rest(self, ended: float | None) -> Iterator[list[Event]]:  # noqa: ARG002 - nothing arrives late
        for lines in self._files.rest():
            if events := self._joined(lines):
                yield events
        yield from iter(self._here.read, [])

    def close(self) -> None:
        self._here.close()
        self._close()

    def _joined(self, lines: Mapping[FileKey, Sequence[bytes]]) -> list[Event]:
        hosts = [decode_lines(b"\n".join(of_file)) for of_file in lines.values()]
        return by_time([*hosts, self._here.read()])


def _parsed(lines: Mapping[FileKey, Sequence[bytes]]) -> list[LogLine]:
    # Lines of different hosts are ordered by time. Lines of one host keep the order of its log, which `merge` does.
    hosts = ([parse_line(line, host) for line in of_file] for (host, _), of_file in lines.items())
    return list(heapq.merge(*hosts, key=lambda line: line.time))
