"""The log of an ssh job as a `LogSource`: the bytes that machines send, and at the end the files on this machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from herringbone.backends.ssh.follow import JobMonitor
from herringbone.jobs.logs import LogLine, parse_line

_READ_BYTES = 1 << 20


class _HostLines:
    """The lines of one host's log, from pieces of any size.

    `begins` is the position of the current attempt's first byte in the file on this machine. `offset` counts the bytes
    of this attempt that have been taken.
    """

    def __init__(self, host: str, begins: int) -> None:
        self.host = host
        self.begins = begins
        self.offset = 0
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        self.offset += len(chunk)
        # The last piece is a line without its end, or empty.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._lines += lines

    def start_attempt(self, begins: int) -> None:
        """Count the following bytes as those of the next attempt."""
        # Half a line of the attempt before has no rest: it was lost with its machine.
        self.begins, self.offset, self._rest = begins, 0, b""

    def take(self) -> list[LogLine]:
        """Return the complete lines that have not been taken yet."""
        lines, self._lines = self._lines, []
        return [parse_line(line, self.host) for line in lines]


class RemoteLogs:
    """Reads the log lines that a monitor receives.

    `current` returns the monitor of the attempt that runs, and where this attempt begins in the files on this machine.
    `log_file` returns the file that holds a host's whole log once the job is over.
    """

    def __init__(
        self,
        current: Callable[[], tuple[JobMonitor, Mapping[str, int]]],
        log_file: Callable[[str], Path],
        close: Callable[[], None],
    ) -> None:
        self._current = current
        self._log_file = log_file
        self._close = close
        self._silent: dict[str, str] = {}
        self._hosts: dict[str, _HostLines] = {}
        self._monitor: JobMonitor | None = None
        self._follow_attempt()

    def read(self) -> list[LogLine]:
        self._follow_attempt()
        assert self._monitor is not None
        self._monitor.look()
        return [*self._silence_lines(), *self._take()]

    def rest(self, ended: float | None) -> Iterator[list[LogLine]]:  # noqa: ARG002 - nothing arrives late
        self._follow_attempt()
        if lines := self._take():
            yield lines
        # The files are complete by now; read them from the last byte that the machines sent.
        for host_lines in self._hosts.values():
            self._read_file(host_lines)
        while lines := self._take():
            yield lines

    def close(self) -> None:
        self._close()

    def _silence_lines(self) -> list[LogLine]:
        """Return a line for each machine that has fallen silent, and for each that answers again, once."""
        assert self._monitor is not None
        before, self._silent = self._silent, self._monitor.silences()
        machines = {host: monitor.machine.name for host, monitor in self._monitor.hosts.items()}
        texts = {
            host: f"waiting for {machines[host]}: {why}" for host, why in self._silent.items() if host not in before
        }
        texts |= {host: f"{machines[host]} answers again" for host in before if host not in self._silent}
        now = datetime.now(timezone.utc)
        return [LogLine(host, None, now, text) for host, text in texts.items()]

    def _follow_attempt(self) -> None:
        """Continue with the attempt that runs now.

        The log of the attempt before is then in the file on this machine, up to the point where this attempt begins.
        """
        monitor, begins = self._current()
        if monitor is self._monitor:
            return
        self._monitor, self._silent = monitor, {}
        # A retry may have fewer hosts than the attempt before; the others' lines must still be read to their end.
        for host in dict.fromkeys([*self._hosts, *begins, *monitor.hosts]):
            host_lines = self._hosts.setdefault(host, _HostLines(host, 0))
            # The rest of the attempt before, of which the machine may not have sent everything.
            self._read_file(host_lines, begins.get(host, 0))
            host_lines.start_attempt(begins.get(host, 0))
        for host, host_monitor in monitor.hosts.items():
            host_monitor.take_log(self._hosts[host].feed)

    def _read_file(self, host_lines: _HostLines, end: int | None = None) -> None:
        try:
            with self._log_file(host_lines.host).open("rb") as file:
                position = file.seek(host_lines.begins + host_lines.offset)
                while chunk := file.read(_READ_BYTES if end is None else min(_READ_BYTES, max(0, end - position))):
                    position += len(chunk)
                    host_lines.feed(chunk)
        except FileNotFoundError:
            pass  # the machine was lost, and the log with it

    def _take(self) -> list[LogLine]:
        # Lines of different hosts are ordered by time. Lines of one host keep the order of its log, which `merge` does.
        return list(heapq.merge(*(host.take() for host in self._hosts.values()), key=lambda line: line.time))
