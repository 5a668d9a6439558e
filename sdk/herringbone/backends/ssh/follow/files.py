"""Follow files of a job's hosts that grow on their machines: the sources of its log and of its events.

    machine's agent   --bytes-->   HostMonitor   -->   RemoteFiles: whole lines per host and file

At the end of an attempt the machines' files are fetched, and put behind those of earlier attempts in the job's folder
here. What a machine has not sent by then is read from there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.ssh.follow.monitor import JobMonitor
from herringbone.events.source import EventFile, by_time, decode_lines
from herringbone.records.logs import LogLine, parse_line

if TYPE_CHECKING:
    from herringbone_contract.events.format import Event

_READ_BYTES = 1 << 20
# The first read waits for machines that answer; one that has sent nothing for so long is not waited for.
_PATIENCE_SECONDS = 3.0
_POLL_SECONDS = 0.002
# A host and the ending of one of its files, such as ("algo-1", "log").
FileKey = tuple[str, str]
LOG = "log"
EVENTS = ("events", "metrics.events")


class _Lines:
    """The lines of one file, from pieces of any size.

    `begins` is the position of the current attempt's first byte in the file on this machine. `offset` counts the bytes
    of this attempt that have been taken.
    """

    def __init__(self) -> None:
        self.begins = self.offset = 0
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the file."""
        self.offset += len(chunk)
        # The last piece is a line without its end, or empty.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += lines

    def start_attempt(self, begins: int) -> None:
        """Count the following bytes as those of the next attempt."""
        # Half a line of the attempt before has no rest: it was lost with its machine.
        self.begins, self.offset, self._rest = begins, 0, b""

    def take(self) -> list[bytes]:
        """Return the complete lines that have not been taken yet."""
        lines, self._lines = self._lines, []
        return lines


class RemoteFiles:
    """Reads the lines of the files that end in one of `endings`, of all hosts of a job.

    `current` returns the monitor of the attempt that runs, and where this attempt begins in the files on this machine,
    by the files' names; None before the first. `folder` has the files of earlier attempts, and all of them once the job
    is over.
    """

    def __init__(
        self,
        current: Callable[[], tuple[JobMonitor, Mapping[str, int]] | None],
        folder: Path,
        endings: Sequence[str],
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._current, self._folder, self._endings, self._patience = current, folder, endings, patience
        self._files: dict[FileKey, _Lines] = {}
        self._monitor: JobMonitor | None = None
        self._follow_attempt()

    @property
    def monitor(self) -> JobMonitor | None:
        """The monitor of the attempt that runs; None while the job waits for its start."""
        return self._monitor

    def read(self) -> dict[FileKey, list[bytes]]:
        """Return the lines that have arrived since the last call; empty when there are no more for now.

        The first calls wait for what the machines have when they are asked: a caller that reads once gets all of it.
        """
        self._follow_attempt()
        deadline = time.monotonic() + self._patience
        while True:
            if (monitor := self._monitor) is None:
                return {}
            monitor.look()
            if (lines := self._take()) or monitor.has_sent_all or time.monotonic() > deadline:
                return lines
            time.sleep(_POLL_SECONDS)

    def rest(self) -> Iterator[dict[FileKey, list[bytes]]]:
        """Yield the remaining lines of a job that is over."""
        self._follow_attempt()
        if lines := self._take():
            yield lines
        # The files are complete by now; read them from the last byte that the machines sent.
        for key in self._files:
            self._read_file(key)
        while lines := self._take():
            yield lines

    def _follow_attempt(self) -> None:
        """Continue with the attempt that runs now.

        The files of the attempt before are then in the folder on this machine, up to the point where this one begins.
        """
        if (current := self._current()) is None:
            return
        monitor, begins = current
        if monitor is self._monitor:
            return
        is_same = self._monitor is not None and self._monitor.job == monitor.job
        self._monitor = monitor
        keys = [(host, ending) for host in monitor.hosts for ending in self._endings]
        if is_same:
            # New connections to the hosts of the same attempt.
            for key in keys:
                monitor.hosts[key[0]].take_file(key[1], self._files[key].feed, self._files[key].offset)
            return
        earlier = [(host, ending) for host, _, ending in (name.partition(".") for name in begins)]
        # A retry may have fewer hosts than the attempt before; the others' lines must still be read to their end.
        for key in dict.fromkeys([*self._files, *(key for key in earlier if key[1] in self._endings), *keys]):
            lines = self._files.setdefault(key, _Lines())
            begin = begins.get(".".join(key), 0)
            # The rest of the attempt before, of which the machine may not have sent everything.
            self._read_file(key, begin)
            lines.start_attempt(begin)
        for key in keys:
            monitor.hosts[key[0]].take_file(key[1], self._files[key].feed)

    def _read_file(self, key: FileKey, end: int | None = None) -> None:
        lines = self._files[key]
        try:
            with (self._folder / ".".join(key)).open("rb") as file:
                position = file.seek(lines.begins + lines.offset)
                while chunk := file.read(_READ_BYTES if end is None else min(_READ_BYTES, max(0, end - position))):
                    position += len(chunk)
                    lines.feed(chunk)
        except FileNotFoundError:
            pass  # the machine was lost, and the file with it

    def _take(self) -> dict[FileKey, list[bytes]]:
        return {key: taken for key, lines in self._files.items() if (taken := lines.take())}


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
